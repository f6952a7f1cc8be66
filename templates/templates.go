// Package templates holds the recipes that are part of the binary, one directory
// each. docs/templates.md says how a recipe is written.
package templates

import "embed"

// FS has one directory for each recipe.
//
//go:embed all:base all:code-interpreter
var FS embed.FS
