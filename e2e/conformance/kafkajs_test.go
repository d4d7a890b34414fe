package conformance

import (
	"errors"
	"os"
	"os/exec"
	"testing"
)

// kafkaJSClients is the client of JavaScript that most use. `make test-tools` installs it.
var kafkaJSClients = []client{{name: "KafkaJS", open: openKafkaJS}}

func openKafkaJS(t *testing.T, addr string) (driver, error) {
	_, node := exec.LookPath("node")
	_, modules := os.Stat("kafkajs/node_modules/kafkajs")
	if err := errors.Join(node, modules); err != nil {
		return nil, err
	}
	return program("kafkajs", "node", "drive.mjs")(t, addr)
}
