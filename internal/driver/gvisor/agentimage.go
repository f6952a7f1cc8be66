package gvisor

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// agentImage returns the path of a read-only EROFS image that holds the guest
// agent, and makes it if it is not there. It is apart from the templates' images,
// so that a new agent needs no new template; its name is the hash of the agent,
// so that a snapshot finds the agent that it was made with.
func agentImage(dir string, agent []byte) (string, error) {
	sum := sha256.Sum256(agent)
	path := filepath.Join(dir, hex.EncodeToString(sum[:])+".erofs")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(dir, "build-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	root := filepath.Join(work, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(root, agentName), agent, 0o755); err != nil {
		return "", err
	}
	// gVisor reads images without inline data only; see docs/hardening.md for
	// who may read the agent. The same agent always gives the same image: a snapshot
	// is refused by one with another time or UUID, also when the directory was lost.
	image := filepath.Join(work, "image")
	uuid := fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
	out, err := exec.Command("mkfs.erofs", "-Enoinline_data", "--all-root", "-T0", "-U"+uuid, image, root).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("cannot make the agent's image with mkfs.erofs (package erofs-utils): %w: %s", err, out)
	}
	if err := os.Rename(image, path); err != nil {
		return "", err
	}
	return path, nil
}
