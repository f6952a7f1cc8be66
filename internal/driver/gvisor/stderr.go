package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// agentLogMax bounds the agent's log on disk. Root inside can write to the agent's
// stderr, so whatever arrives there is bounded too.
const agentLogMax = 64 << 10 // bytes

// stderrLog drains the agent's stderr into a file that never grows beyond twice
// agentLogMax. While no daemon runs, the pipe holds what is written.
type stderrLog struct {
	pipe, file *os.File
	once       sync.Once
}

func openStderrLog(dir string) (*stderrLog, error) {
	pipe, err := os.OpenFile(filepath.Join(dir, fifoStderr), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open the agent's stderr: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(dir, agentLog), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		pipe.Close()
		return nil, err
	}
	l := &stderrLog{pipe: pipe, file: file}
	go l.drain()
	return l, nil
}

func (l *stderrLog) drain() {
	defer l.file.Close()
	var size int64
	if st, err := l.file.Stat(); err == nil {
		size = st.Size()
	}
	buf := make([]byte, 4096)
	for {
		n, err := l.pipe.Read(buf)
		if n > 0 {
			if size += int64(n); size > 2*agentLogMax {
				size = l.keepTail() + int64(n)
			}
			l.file.Write(buf[:n])
		}
		if err != nil {
			return
		}
	}
}

// keepTail drops all but the newest agentLogMax bytes and returns what is left.
func (l *stderrLog) keepTail() int64 {
	tail := make([]byte, agentLogMax)
	st, err := l.file.Stat()
	if err != nil {
		return 0
	}
	n, _ := l.file.ReadAt(tail, max(st.Size()-agentLogMax, 0))
	if l.file.Truncate(0) != nil {
		return st.Size()
	}
	l.file.Write(tail[:n])
	return int64(n)
}

func (l *stderrLog) Close() {
	l.once.Do(func() { l.pipe.Close() })
}
