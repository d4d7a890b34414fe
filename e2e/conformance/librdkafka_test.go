package conformance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// librdkafkaClients are confluent-kafka-go, which is librdkafka by cgo. The first build takes a minute.
var librdkafkaClients = []client{{name: "confluent-kafka-go", open: openLibrdkafka}}

// librdkafkaBuild is where the program is, built once.
var librdkafkaBuild struct {
	sync.Mutex
	path string
}

func openLibrdkafka(t *testing.T, addr string) (driver, error) {
	librdkafkaBuild.Lock()
	defer librdkafkaBuild.Unlock()
	if librdkafkaBuild.path == "" {
		path := filepath.Join(scratch, "librdkafka")
		build := exec.Command("go", "build", "-o", path, ".")
		build.Dir = "librdkafka"
		build.Env = append(os.Environ(), "CGO_ENABLED=1")
		if out, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build: %w\n%s", err, out)
		}
		librdkafkaBuild.path = path
	}
	return program(".", librdkafkaBuild.path)(t, addr)
}
