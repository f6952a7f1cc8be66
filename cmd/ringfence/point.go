//go:build !faultpoints

package main

// atPoint is nil but in the binary of the tests.
var atPoint func(point string)
