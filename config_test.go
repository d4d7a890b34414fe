package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"leat/auth"
)

// parse reads a command line as the program does.
func parse(t *testing.T, args ...string) (*serveConfig, error) {
	t.Helper()
	var cmds struct {
		Serve serveConfig `cmd:""`
	}
	p, err := kong.New(&cmds, kong.DefaultEnvars("LEAT"), kong.Configuration(loadYAML))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Parse(append([]string{"serve"}, args...)); err != nil {
		return nil, err
	}
	return &cmds.Serve, cmds.Serve.validate()
}

func yamlWith(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "leat.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// Flags win over variables, variables over the file, the file over defaults.
func TestConfigSources(t *testing.T) {
	file := yamlWith(t, "http-addr: 127.0.0.1:1\nkafka-addr: 127.0.0.1:2\nops-addr: 127.0.0.1:3\nmax-request-bytes: 77\n"+
		"allow-origin: [https://a.example, https://b.example]\nconfig:\n  num.partitions: 3\n  cleanup.policy: compact,delete\n")
	t.Setenv("LEAT_KAFKA_ADDR", "127.0.0.1:22")
	t.Setenv("LEAT_OPS_ADDR", "127.0.0.1:33")
	c, err := parse(t, "--config", file, "--ops-addr", "127.0.0.1:333")
	if err != nil {
		t.Fatal(err)
	}
	if c.HTTPAddr != "127.0.0.1:1" || c.KafkaAddr != "127.0.0.1:22" || c.OpsAddr != "127.0.0.1:333" {
		t.Errorf("addresses %q %q %q", c.HTTPAddr, c.KafkaAddr, c.OpsAddr)
	}
	if c.MaxRequest != 77 || strings.Join(c.AllowOrigin, " ") != "https://a.example https://b.example" {
		t.Errorf("%d %v", c.MaxRequest, c.AllowOrigin)
	}
	if c.Set["num.partitions"] != "3" || c.Set["cleanup.policy"] != "compact,delete" || len(c.Set) != 2 {
		t.Errorf("configs %v", c.Set)
	}
	if c.LogFormat != "text" || !strings.HasSuffix(c.DataDir, "leat-data") {
		t.Errorf("defaults %q %q", c.LogFormat, c.DataDir)
	}
}

// --set takes any value as it stands, and variables hold several.
func TestConfigSet(t *testing.T) {
	c, err := parse(t, "--set", "cleanup.policy=compact,delete", "--set", "flush.messages=1")
	if err != nil {
		t.Fatal(err)
	}
	if c.Set["cleanup.policy"] != "compact,delete" || c.Set["flush.messages"] != "1" {
		t.Errorf("configs %v", c.Set)
	}
	t.Setenv("LEAT_SET", "cleanup.policy=compact,delete;num.partitions=2")
	t.Setenv("LEAT_ALLOW_ORIGIN", "https://a.example,https://b.example")
	if c, err = parse(t); err != nil || len(c.Set) != 2 || c.Set["num.partitions"] != "2" || len(c.AllowOrigin) != 2 {
		t.Errorf("from variables: %v %v, %v", c.Set, c.AllowOrigin, err)
	}
}

// Bad settings are refused with the name of the setting.
func TestConfigRefuses(t *testing.T) {
	for _, tc := range []struct {
		want string
		args []string
	}{
		{"unknown setting \"http-adr\"", []string{"--config", yamlWith(t, "http-adr: 127.0.0.1:1")}},
		{"--kafka-addr", []string{"--kafka-addr", "0.0.0.0:9092"}},
		{auth.ErrExposed.Error(), []string{"--http-addr", ":80"}},
		{"--ops-addr", []string{"--ops-addr", "nonsense"}},
		{"--kafka-advertise", []string{"--kafka-advertise", "host"}},
		{"--kafka-advertise", []string{"--kafka-advertise", "host:0"}},
		{"--max-request-bytes", []string{"--max-request-bytes", "0"}},
		{"--allow-origin", []string{"--allow-origin", "*"}},
		{"--allow-origin", []string{"--allow-origin", "null"}},
		{"more than one", []string{"--config", yamlWith(t, "log-level: info\n---\nlog-level: debug\n")}},
		{"--data-dir", []string{"--data-dir", ""}},
		{"--http-addr", []string{"--http-addr", "127.0.0.1:99999"}},
		{"--ready-file", []string{"--ready-file", t.TempDir()}},
		{"unknown flag", []string{"--nope"}},
	} {
		if _, err := parse(t, tc.args...); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: %v, want %q", tc.args, err, tc.want)
		}
	}
	if _, err := parse(t, "--insecure", "--http-addr", "0.0.0.0:0", "--kafka-addr", "[::]:0"); err != nil {
		t.Errorf("--insecure: %v", err)
	}
}

// Clients are told the bound address unless the operator names another, and
// never "every interface".
func TestAdvertised(t *testing.T) {
	bound := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4711}
	c := &serveConfig{}
	if host, port, err := c.advertised(bound); err != nil || host != "127.0.0.1" || port != 4711 {
		t.Errorf("bound: %s %d %v", host, port, err)
	}
	if host, port, err := c.advertised(&net.TCPAddr{IP: net.IPv6unspecified, Port: 1}); err != nil || host == "::" || port != 1 {
		t.Errorf("every interface: %s %d %v", host, port, err)
	}
	c.KafkaAdvertise = "broker.example:9999"
	if host, port, err := c.advertised(bound); err != nil || host != "broker.example" || port != 9999 {
		t.Errorf("named: %s %d %v", host, port, err)
	}
}
