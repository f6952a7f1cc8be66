package guest_test

import (
	"bytes"
	"strings"
	"testing"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestproto"
)

// What root in a command may not do to the agent and to the limits.
func TestRootIsBounded(t *testing.T) {
	b := gvisorBed(t, ringfence.Size{VCPU: 2, MemoryMiB: 512, DiskMiB: 512})
	for _, c := range []struct{ name, script, want string }{
		{"Capabilities", `grep -E 'Cap(Prm|Eff|Bnd)' /proc/self/status | awk '{print $2}' | sort -u`, "00000000a80405fb\n"},
		{"NoInheritable", `grep -E 'Cap(Inh|Amb)' /proc/self/status | awk '{print $2}' | sort -u`, "0000000000000000\n"},
		{"AgentIsNotInProc", `cat /proc/[0-9]*/cmdline | tr '\0' ' ' | grep -c '[.]ringfence/agent'`, "0\n"},
		{"FirstProcess", `tr '\0' ' ' </proc/1/cmdline`, "ringfence-init init-wait "},
		{"ForgeByFD", `for i in 0 1 2 3 4 5 10 11; do echo forged > /proc/1/fd/$i && echo wrote; done 2>/dev/null; readlink /proc/1/fd/* /proc/1/root /proc/1/cwd /proc/1/exe`, ""},
		{"AgentMemory", `cat /proc/1/mem /proc/1/environ /proc/1/maps 2>/dev/null | wc -c`, "0\n"},
		{"NoCgroups", `ls /sys/fs/cgroup | wc -l; mount | grep -c cgroup`, "0\n0\n"},
		{"NoMount", `mount -t tmpfs none /mnt 2>/dev/null; mount -t cgroup none /mnt 2>/dev/null; mount -t proc none /mnt 2>/dev/null; umount /proc 2>/dev/null; ls /mnt | wc -l`, "0\n"},
		{"NoUncover", `unshare -Ur --mount sh -c 'umount /proc 2>/dev/null; umount /sys 2>/dev/null; ls /sys/fs/cgroup; cat /proc/[0-9]*/cmdline' 2>/dev/null | tr '\0' ' ' | grep -c -E '[.]ringfence/agent|pid[s].max'`, "0\n"},
		{"NoHostname", `hostname other 2>/dev/null; hostname`, "box\n"},
		{"NoRawSocket", `perl -MSocket -e 'print socket(S, AF_INET, SOCK_RAW, 1) ? "open" : "refused"'`, "refused"},
		{"InitSurvives", `kill -TERM 1 2>/dev/null; kill -HUP 1 2>/dev/null; kill -9 -1 2>/dev/null; sleep 0.1; test -d /proc/1 && echo alive`, "alive\n"},
		{"Nproc", `ulimit -u 2>/dev/null || ulimit -p`, "264\n"},
		{"RaiseNproc", `ulimit -u unlimited 2>/dev/null && echo raised || echo refused`, "refused\n"},
		{"UsualThings", `touch /root/x && chown user /root/x && chmod 4755 /root/x && rm /root/x && mknod /tmp/null c 1 3 && echo x > /tmp/null && chroot / true && echo fine`, "fine\n"},
		{"Groups", `groupadd -g 777 extra && usermod -a -G extra user && echo done`, "done\n"},
		{"BecomeUser", `setpriv --reuid user --regid user --clear-groups id -un`, "user\n"},
		{"Tmp", `stat -c '%a %U' /tmp; stat -f -c %T /tmp | grep -c tmpfs`, "1777 root\n0\n"},
		// Files in /dev would be memory that no process owns; devices, terminals and shared memory work.
		{"Dev", `for f in /dev/file /dev/shm/../file2 /dev/pts/x; do echo x 2>/dev/null > $f && echo wrote $f; done; echo x > /dev/null && echo x > /dev/shm/y && cat /dev/shm/y && head -c 3 /dev/zero | wc -c && script -qec 'echo tty > /dev/tty' /dev/null | tr -d '\r'`, "x\n3\ntty\n"},
		{"Hosts", `grep -c -w box /etc/hosts`, "1\n"},
		{"Umask", `umask`, "0022\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := b.sh(t, c.script)
			if r.stdout != c.want {
				t.Errorf("got %q, want %q (stderr %q, exit %+v)", r.stdout, c.want, r.stderr, r.exit)
			}
		})
	}
	t.Run("AgentLives", func(t *testing.T) {
		if _, err := b.conn.Ping(testContext(t)); err != nil {
			t.Error(err)
		}
	})
	t.Run("SupplementaryGroups", func(t *testing.T) {
		b.sh(t, "mkdir -m 750 /srv/extra && chgrp extra /srv/extra && echo x > /srv/extra/f && chmod 640 /srv/extra/f && chgrp extra /srv/extra/f")
		r := b.run(t, guestproto.ProcessStart{Shell: "id -G; id -un; echo $HOME; cat /srv/extra/f;", User: "user"})
		if r.stdout != "1000 777\nuser\n/home/user\nx\n" {
			t.Errorf("got %+v", r)
		}
		got, err := b.read(t, guestproto.FileRead{FilePath: guestproto.FilePath{Path: "/srv/extra/f", User: "user"}})
		if err != nil || string(got) != "x\n" {
			t.Errorf("got %q, %v", got, err)
		}
	})
	// File calls see what commands see, with no more rights.
	t.Run("Files", func(t *testing.T) {
		for _, p := range []string{"/proc/1/fd/0", "/proc/1/environ", "/proc/self/environ", "/sys/fs/cgroup/pids/rf/pids.max"} {
			info, r, err := b.conn.ReadFile(testContext(t), guestproto.FileRead{FilePath: guestproto.FilePath{Path: p}})
			if err == nil {
				r.Close()
				t.Errorf("%s could be read: %+v", p, info)
			}
		}
		_, err := b.conn.WriteFile(testContext(t), guestproto.FileWrite{FilePath: guestproto.FilePath{Path: "/proc/sys/kernel/hostname"}}, strings.NewReader("x"))
		if err == nil {
			t.Error("a file in /proc could be replaced")
		}
	})
	t.Run("Ptrace", func(t *testing.T) {
		r := b.sh(t, `perl -e 'my $r = syscall(101, 16, 1, 0, 0); print $r == 0 ? "attached" : "refused"'`)
		if r.stdout != "refused" {
			t.Errorf("got %+v", r)
		}
	})
	// The sentry lets root kill the first process of its namespace, and all commands
	// with it. The sandbox gets over it.
	t.Run("KillFirst", func(t *testing.T) {
		r := b.sh(t, `kill -9 1; sleep 10`)
		if r.exit.ExitCode != 137 {
			t.Errorf("got %+v", r)
		}
		waitFor(t, func() bool {
			var stdout, stderr bytes.Buffer
			p, err := b.conn.Start(testContext(t), guestproto.ProcessStart{ID: newID(), Shell: "echo $$; ls /sys/fs/cgroup"}, collect(&stdout, &stderr))
			if err != nil {
				return false
			}
			exit, err := p.Wait(testContext(t))
			return err == nil && exit.ExitCode == 0 && stdout.Len() > 0
		})
	})
	t.Run("OrphansAreCollected", func(t *testing.T) {
		b.sh(t, `for i in 1 2 3 4 5 6 7 8; do (true & true &); done; sleep 0.2`)
		waitFor(t, func() bool {
			r := b.sh(t, `cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '`)
			return r.stdout == "0\n"
		})
	})
}
