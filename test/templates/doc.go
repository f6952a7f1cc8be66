// Package templates tests the built-in templates in a real sandbox: every library
// is imported and used, every tool is started, and nothing of the host that built
// the image is in it.
package templates
