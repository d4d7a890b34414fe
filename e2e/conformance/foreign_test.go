package conformance

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// installDir is where make conformance puts what the clients outside Go need; a file NAME.done says that a part is
// whole, and NAME.log what went wrong.
const installDir = "../../bin/conformance"

// foreignClients are not in Go.
var foreignClients = []client{
	{"@platformatic/kafka", true, installed("platformatic", program("platformatic", "node_modules/.bin/node", "drive.mjs"))},
	{"kafka-python", true, installed("python", program("python", "../"+installDir+"/python/bin/python", "-B", "drive_kafka_python.py"))},
	{"aiokafka", true, installed("python", program("python", "../"+installDir+"/python/bin/python", "-B", "drive_aiokafka.py"))},
	{"Java", true, installed("java", program(installDir+"/java", slices.Concat([]string{"java"}, javaFlags, []string{"-cp", "classes:lib/*", "Drive"})...))},
}

// javaFlags make the short life of a virtual machine cheap.
var javaFlags = []string{"-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"}

// installed keeps a client whose part is not whole from being started, and says why it is not.
func installed(part string, open func(*testing.T, string) (driver, error)) func(*testing.T, string) (driver, error) {
	return func(t *testing.T, addr string) (driver, error) {
		if err := whole(part); err != nil {
			return nil, err
		}
		return open(t, addr)
	}
}

// whole is nil when a part is installed.
func whole(part string) error {
	_, err := os.Stat(filepath.Join(installDir, part+".done"))
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	log, err := os.ReadFile(filepath.Join(installDir, part+".log"))
	if err != nil {
		return errors.New("not installed: make conformance does that")
	}
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	words := strings.Fields(lines[len(lines)-1])
	for i, w := range words {
		if strings.Contains(w, "/") {
			words[i] = "…" // a path or a host, which is of this machine only
		}
	}
	return fmt.Errorf("not installed: %s", strings.Join(words, " "))
}
