package egress

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"
)

// The servers of the programs that people use most: a repository of git over HTTPS and
// SSH, an index of Python packages, a registry of npm, a repository of Debian packages.
// Each serves one thing called demo-package, under its name in any domain.
func (in *internet) services() {
	in.t.Helper()
	repo := in.repository()
	backend := strings.TrimSpace(in.output("", "git", "--exec-path")) + "/git-http-backend"
	git := &cgi.Handler{Path: backend, Env: []string{"GIT_PROJECT_ROOT=" + filepath.Dir(repo), "GIT_HTTP_EXPORT_ALL=1"}}
	in.sshServer(":2222", repo)
	wheel, tarball, deb := in.wheel(), in.tarball(), in.debPackage()
	served := map[string]http.Handler{
		"git":   git,
		"index": files(map[string][]byte{"/simple/demo-package": []byte(`<a href="/demo_package-1.0-py3-none-any.whl">demo_package-1.0-py3-none-any.whl</a>`), "/demo_package-1.0-py3-none-any.whl": wheel}),
		"npm": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			sum := sha512.Sum512(tarball)
			dist := map[string]any{"tarball": "https://" + r.Host + "/demo-package.tgz", "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:])}
			version := map[string]any{"name": "demo-package", "version": "1.0.0", "dist": dist}
			doc, err := json.Marshal(map[string]any{"name": "demo-package", "dist-tags": map[string]any{"latest": "1.0.0"}, "versions": map[string]any{"1.0.0": version}})
			if err != nil {
				panic(err)
			}
			files(map[string][]byte{"/demo-package": doc, "/demo-package.tgz": tarball}).ServeHTTP(w, r)
		}),
		"deb": files(map[string][]byte{"/demo-package.deb": deb, "/Packages": fmt.Appendf(nil,
			"Package: demo-package\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody <nobody@deb.test>\nFilename: ./demo-package.deb\nSize: %d\nSHA256: %x\nDescription: a demo\n", len(deb), sha256.Sum256(deb))}),
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	for name, handler := range served {
		in.handlers[name] = handler
	}
}

// clientRows are what real programs do in a domain, under a policy that names the hosts
// of services there. prefix comes before each command; rule is what the log says of it.
func clientRows(domain, prefix string, log func(rule string) string) []row {
	where := func(command string) []any {
		return a("shell", "cd $(mktemp -d) && "+strings.ReplaceAll(prefix+command, "DOMAIN", domain)+" 2>&1")
	}
	rule := func(entry string) string {
		if log == nil {
			return ""
		}
		return log(strings.ReplaceAll(entry, "DOMAIN", domain))
	}
	const sshTo = "GIT_SSH_COMMAND='ssh -o LogLevel=ERROR -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=20' "
	const apt = "apt-get -qq -o Dir::Etc::SourceList=$PWD/list -o Dir::Etc::SourceParts=/dev/null -o Dir::State::lists=$PWD/lists -o Acquire::Retries=0 -o DPkg::Lock::Timeout=60 -o APT::Sandbox::User=root "
	return []row{
		{"git over HTTPS", where("git clone -q https://git.DOMAIN/repo.git && cat repo/README"), "…from the repository…", rule("git.DOMAIN")},
		{"git over SSH", where(sshTo + "git clone -q ssh://git@git.DOMAIN:2222/repo.git && cat repo/README"), "…from the repository…", rule("git.DOMAIN")},
		{"pip", where("pip install -q --disable-pip-version-check --no-cache-dir --retries 0 --index-url https://index.DOMAIN/simple --target . demo-package && python3 -c 'import demo_package'"), "…from the wheel…", rule("index.DOMAIN:443")},
		{"npm", where("npm install --silent --no-audit --no-fund --fetch-retries 0 --registry https://npm.DOMAIN/ demo-package && node -e 'require(\"demo-package\")'"), "…from the tarball…", rule("npm.DOMAIN:443")},
		{"apt-get", where("sh -c 'echo deb [trusted=yes] http://deb.DOMAIN ./ >list && mkdir -p lists/partial && " + apt + "update && " + apt + "install -y --reinstall demo-package >/dev/null && cat /usr/share/demo-package'"), "…from the package…", rule("deb.DOMAIN:80")},
		{"git of another host", where("git clone -q https://denied.DOMAIN/repo.git"), "…resolve host…|…403…", "denied not_allowed"},
		{"git over SSH of another host", where(sshTo + "git clone -q ssh://git@denied.DOMAIN:2222/repo.git"), "…resolve hostname…", "denied not_allowed"},
		{"pip of another index", where("pip install -q --disable-pip-version-check --retries 0 --index-url https://denied.DOMAIN/simple --target . demo-package"), "…No matching distribution…", "denied not_allowed"},
		{"npm of another registry", where("npm install --no-audit --no-fund --fetch-retries 0 --registry https://denied.DOMAIN/ demo-package"), "…npm error…", "denied not_allowed"},
		{"apt-get of another repository", where("sh -c 'echo deb [trusted=yes] http://denied.DOMAIN ./ >list && mkdir -p lists/partial && " + apt + "update'"), "…resol…|…403…", "denied not_allowed"},
	}
}

// clientPolicy names the hosts of clientRows.
func clientPolicy(domain string) []string {
	return list(strings.ReplaceAll("git.DOMAIN index.DOMAIN:443 npm.DOMAIN:443 deb.DOMAIN:80", "DOMAIN", domain))
}

func files(content map[string][]byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := content[path.Clean(r.URL.Path)]
		if !ok {
			http.NotFound(w, r)
			return
		}
		if strings.HasSuffix(r.URL.Path, "/") { // else a program takes it for a file
			w.Header().Set("Content-Type", "text/html")
		}
		w.Write(text)
	})
}

// output runs a program of the host and returns what it prints.
func (in *internet) output(dir, name string, args ...string) string {
	in.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@t", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@t")
	out, err := cmd.Output()
	if err != nil {
		in.t.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return string(out)
}

func (in *internet) write(name, text string) {
	in.t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		in.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		in.t.Fatal(err)
	}
}

func (in *internet) repository() string {
	work, bare := in.t.TempDir(), filepath.Join(in.t.TempDir(), "repo.git")
	in.write(filepath.Join(work, "README"), "from the repository\n")
	in.output(work, "git", "init", "-q")
	in.output(work, "git", "add", ".")
	in.output(work, "git", "commit", "-q", "-m", "first")
	in.output(work, "git", "clone", "-q", "--bare", work, bare)
	return bare
}

// sshServer lets anybody in, who may do one thing: fetch the repository.
func (in *internet) sshServer(address, repo string) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		in.t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		in.t.Fatal(err)
	}
	config := &ssh.ServerConfig{NoClientAuth: true}
	config.AddHostKey(signer)
	in.each(address, func(c net.Conn) {
		_, channels, requests, err := ssh.NewServerConn(c, config)
		if err != nil {
			return // an attempt of another kind
		}
		go ssh.DiscardRequests(requests)
		for offered := range channels {
			channel, requests, err := offered.Accept()
			if err != nil {
				return
			}
			go func() {
				defer channel.Close()
				for r := range requests {
					if r.Type != "exec" {
						r.Reply(r.Type == "env", nil)
						continue
					}
					r.Reply(true, nil)
					cmd := exec.Command("git", "upload-pack", repo)
					cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null")
					cmd.Stdin, cmd.Stdout, cmd.Stderr = channel, channel, channel.Stderr()
					status := byte(0)
					if err := cmd.Run(); err != nil {
						status = 1
					}
					channel.SendRequest("exit-status", false, []byte{0, 0, 0, status})
					return
				}
			}()
		}
	})
}

func (in *internet) wheel() []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, f := range [][2]string{
		{"demo_package.py", "print('from the wheel')\n"},
		{"demo_package-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: demo-package\nVersion: 1.0\n"},
		{"demo_package-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{"demo_package-1.0.dist-info/RECORD", "demo_package.py,,\ndemo_package-1.0.dist-info/METADATA,,\ndemo_package-1.0.dist-info/WHEEL,,\ndemo_package-1.0.dist-info/RECORD,,\n"},
	} {
		w, err := z.Create(f[0])
		if err == nil {
			_, err = io.WriteString(w, f[1])
		}
		if err != nil {
			in.t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		in.t.Fatal(err)
	}
	return b.Bytes()
}

func (in *internet) tarball() []byte {
	var b bytes.Buffer
	compressed := gzip.NewWriter(&b)
	w := tar.NewWriter(compressed)
	for _, f := range [][2]string{
		{"package/package.json", `{"name":"demo-package","version":"1.0.0","main":"index.js"}`},
		{"package/index.js", "console.log('from the tarball')\n"},
	} {
		err := w.WriteHeader(&tar.Header{Name: f[0], Mode: 0o644, Size: int64(len(f[1]))})
		if err == nil {
			_, err = io.WriteString(w, f[1])
		}
		if err != nil {
			in.t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		in.t.Fatal(err)
	}
	if err := compressed.Close(); err != nil {
		in.t.Fatal(err)
	}
	return b.Bytes()
}

func (in *internet) debPackage() []byte {
	dir := in.t.TempDir()
	in.write(filepath.Join(dir, "p/DEBIAN/control"), "Package: demo-package\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody <nobody@deb.test>\nDescription: a demo\n")
	in.write(filepath.Join(dir, "p/usr/share/demo-package"), "from the package\n")
	if err := os.Chmod(filepath.Join(dir, "p"), 0o755); err != nil {
		in.t.Fatal(err)
	}
	in.output(dir, "dpkg-deb", "--root-owner-group", "-b", "p", "demo-package.deb")
	deb, err := os.ReadFile(filepath.Join(dir, "demo-package.deb"))
	if err != nil {
		in.t.Fatal(err)
	}
	return deb
}
