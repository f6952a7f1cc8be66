package engine_test

import (
	"bytes"

	"ringfence.dev/ringfence"
)

// gathered is a sink that keeps what it is given.
type gathered struct {
	process  ringfence.Process
	from     uint64
	out, err bytes.Buffer
	lost     uint64
}

func (g *gathered) Started(p ringfence.Process, position uint64) error {
	g.process, g.from = p, position
	return nil
}

func (g *gathered) Output(stream ringfence.Stream, _ uint64, data []byte) error {
	if stream == ringfence.Stderr {
		g.err.Write(data)
	} else {
		g.out.Write(data)
	}
	return nil
}

func (g *gathered) Lost(bytes, _ uint64) error {
	g.lost += bytes
	return nil
}
