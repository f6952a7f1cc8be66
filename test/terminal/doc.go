// Package terminal drives a real terminal: the real `ringfence shell` on a terminal of this
// machine, in a real sandbox, with the programs that people use there.
package terminal
