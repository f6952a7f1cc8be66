// Package setup holds tests that interrupt scripts/demo, which sets up a fresh
// machine, and see that the next one works and that nothing is left.
package setup
