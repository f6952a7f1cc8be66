# So that no import compiles anything in a sandbox, where it would be done again in
# each. Times of the sources are kept in the image, so ordinary .pyc files stay valid.
site=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
python3 -m compileall -q -j 0 "$site" || echo "some files do not compile"
du -sh "$site"
