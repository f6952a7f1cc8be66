// Package api holds the contract of the REST API, as the server serves it.
package api

import _ "embed"

// OpenAPI is the description of the API in OpenAPI 3.1, as YAML.
//
//go:embed openapi.yaml
var OpenAPI []byte
