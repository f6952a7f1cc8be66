package templates

import (
	"archive/zip"
	"bytes"
	"testing"
)

func TestStart(t *testing.T) {
	for _, name := range []string{"base", "code-interpreter"} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, name)
			b.sh(t, "", `id -un; pwd; echo $HOME`).want(t, "root\n/home/user\n/root")
			b.sh(t, "user", `id -un; id -u; id -g; pwd; echo $HOME`).want(t, "user\n1000\n1000\n/home/user\n/home/user")
			b.sh(t, "", `stat -c '%U %G %a' /home/user /workspace /tmp`).want(t, "user user 755\nuser user 755\nroot root 1777")
			b.sh(t, "user", `touch ~/a /workspace/b && sudo id -un && sudo -u user id -un`).want(t, "root\nuser")
			b.sh(t, "", `python -c 'import sys; print(sys.version_info >= (3, 11))'; python3 -c 'print(1)'`).want(t, "True\n1")
			b.sh(t, "", `locale 2>/dev/null | head -n 1; python -c 'print("é", open("/dev/null").encoding)'`).want(t, "LANG=C.UTF-8\né UTF-8")
			b.sh(t, "", `ls -A /dev/shm /tmp; cat /etc/hostname`).want(t, "/dev/shm:\n\n/tmp:\nsandbox")
		})
	}
}

func TestTools(t *testing.T) {
	b := newBox(t, "code-interpreter")
	for _, c := range []struct{ name, script, want string }{
		{"git", `cd $(mktemp -d) && git init -q -b main . && git config user.email a@b.c && git config user.name A &&
			echo é >f && git add f && git commit -q -m one && git log --format=%s && git clone -q . ../clone-$$ && cat ../clone-$$/f`, "one\né"},
		{"node", `node -e 'console.log([1,2,3].map(x => x*2).join(), parseInt(process.versions.node) >= 20)'`, "2,4,6 true"},
		{"npm", `cd $(mktemp -d) && npm init -y >/dev/null && npm --version | grep -c '^[0-9]' && npx --version | grep -c . && npm root -g`,
			"1\n1\n/usr/local/lib/node_modules"},
		{"npm from a directory", `cd $(mktemp -d) && mkdir p && echo '{"name":"p","version":"1.0.0"}' >p/package.json && echo 'module.exports = 7' >p/index.js &&
			npm init -y >/dev/null && npm install --offline --no-audit --no-fund ./p >/dev/null && node -p 'require("p")'`, "7"},
		{"curl", `cd $(mktemp -d) && echo hello >f && (python -m http.server -b 127.0.0.1 8123 >/dev/null 2>&1 & echo $! >pid) &&
			curl -s --retry 20 --retry-connrefused --retry-delay 1 http://127.0.0.1:8123/f; kill $(cat pid)`, "hello"},
		{"wget", `wget --version | head -n 1 | cut -d' ' -f1-2`, "GNU Wget"},
		{"dig", `dig -v 2>&1 | cut -c1-4`, "DiG "},
		{"dig without a network", `dig +time=1 +tries=1 @127.0.0.1 example.org >/dev/null 2>&1; echo $?`, "9"},
		{"ssh", `ssh -V 2>&1 | cut -c1-7 && cd $(mktemp -d) && ssh-keygen -q -t ed25519 -N '' -f k && cut -d' ' -f1 k.pub`, "OpenSSH\nssh-ed25519"},
		{"vim", `cd $(mktemp -d) && echo one >f && vim -es -u NONE -c '%s/one/two/' -c wq f && cat f`, "two"},
		{"tmux", `tmux -L t new-session -d -s s -x 80 -y 24 'echo in tmux; sleep 60' && sleep 1 && tmux -L t capture-pane -p -t s | head -n 1; tmux -L t kill-server`, "in tmux"},
		{"jq", `echo '{"a": [1, 2]}' | jq -c .a`, "[1,2]"},
		{"file", `file -b /bin/true | cut -c1-3`, "ELF"},
		{"jupyter", `jupyter kernelspec list --json | jq -r '.kernelspecs | keys[]' && ipython -c 'print(6*7)'`, "python3\n42"},
		{"pip check", `pip check`, "No broken requirements found."},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, user := range []string{"root", "user"} {
				if user == "root" && c.name == "jupyter" {
					continue // slow, and the same for both
				}
				b.sh(t, user, c.script).want(t, c.want)
			}
		})
	}
}

// ping works without a raw socket, which nobody in a sandbox gets.
func TestPing(t *testing.T) {
	b := newBox(t, "code-interpreter")
	for _, user := range []string{"root", "user"} {
		b.sh(t, user, `ping -q -c 1 -W 2 127.0.0.1 | grep -o '1 received'`).want(t, "1 received")
	}
}

// wheel makes a wheel of a package with one module and one command.
func wheel(t *testing.T, name string) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	info := name + "-1.0.dist-info/"
	files := [][2]string{
		{name + ".py", "def main():\n    print('hello from " + name + "')\n"},
		{info + "METADATA", "Metadata-Version: 2.1\nName: " + name + "\nVersion: 1.0\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{info + "entry_points.txt", "[console_scripts]\n" + name + "-command = " + name + ":main\n"},
	}
	record := info + "RECORD,,\n"
	for _, f := range files {
		record += f[0] + ",,\n"
	}
	for _, f := range append(files, [2]string{info + "RECORD", record}) {
		e, err := w.Create(f[0])
		if err != nil {
			t.Fatal(err)
		}
		e.Write([]byte(f[1]))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestPipInstalls(t *testing.T) {
	b := newBox(t, "code-interpreter")
	b.write(t, "/tmp/w/rfone-1.0-py3-none-any.whl", wheel(t, "rfone"))
	b.write(t, "/tmp/w/rftwo-1.0-py3-none-any.whl", wheel(t, "rftwo"))
	const install = ` install -q --no-index --find-links /tmp/w `

	b.sh(t, "root", "pip"+install+"rfone && rfone-command && python -c 'import rfone; print(rfone.__file__)'").
		want(t, "hello from rfone\n/usr/local/lib/python3.13/dist-packages/rfone.py")
	b.sh(t, "user", "pip"+install+"rftwo && rftwo-command && python -c 'import rftwo; print(rftwo.__file__)' && rfone-command").
		want(t, "hello from rftwo\n/home/user/.local/lib/python3.13/site-packages/rftwo.py\nhello from rfone")
	b.sh(t, "user", "cd $(mktemp -d) && python -m venv --without-pip v && pip --python v/bin/python"+install+"rfone && v/bin/rfone-command").want(t, "hello from rfone")
	b.sh(t, "root", "pip uninstall -q -y rfone && pip3 --version | cut -d' ' -f1").want(t, "pip")
	b.sh(t, "root", "pip config list").want(t, "global.disable-pip-version-check='true'\nglobal.root-user-action='ignore'")
}
