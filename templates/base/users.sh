# Commands run as root in /home/user unless they say otherwise; user is there for
# those that do, and may become root as its owner could anyway.
useradd --create-home --uid 1000 --shell /bin/bash user
chmod 755 /home/user
usermod --shell /bin/bash root
install -d -o user -g user -m 755 /workspace
echo 'user ALL=(ALL:ALL) NOPASSWD: ALL' >/etc/sudoers.d/user
chmod 440 /etc/sudoers.d/user
