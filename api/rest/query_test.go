package rest

import (
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// contractParameters are the names of the query parameters that openapi.yaml has
// for an operation.
func contractParameters(t *testing.T, doc map[string]any, lists ...any) (names []string) {
	t.Helper()
	shared := doc["components"].(map[string]any)["parameters"].(map[string]any)
	for _, list := range lists {
		items, _ := list.([]any)
		for _, item := range items {
			p := item.(map[string]any)
			if ref, ok := p["$ref"].(string); ok {
				p, ok = shared[strings.TrimPrefix(ref, "#/components/parameters/")].(map[string]any)
				if !ok {
					t.Fatalf("no parameter %s", ref)
				}
			}
			if p["in"] == "query" {
				names = append(names, p["name"].(string))
			}
		}
	}
	slices.Sort(names)
	return names
}

// Every route of the API takes just the query parameters that openapi.yaml has
// for it: one that it does not know is answered with those that there are.
func TestQueryEqualsContract(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	var doc map[string]any
	if err := yaml.Unmarshal(contractText(), &doc); err != nil {
		t.Fatal(err)
	}
	names := strings.NewReplacer("{topic}", "t", "{partition}", "0", "{offset}", "0", "{group}", "g", "{lease}", strings.Repeat("A", 50))
	checked := 0
	for path, item := range doc["paths"].(map[string]any) {
		if !strings.HasPrefix(path, "/v1/") || path == "/v1/ws" {
			continue
		}
		ops := item.(map[string]any)
		for method, op := range ops {
			if method == "parameters" || method == "head" {
				continue // the answer to HEAD has no words
			}
			media := mediaJSON
			if method == "patch" {
				media = mediaMerge
			}
			a := d.do(strings.ToUpper(method), names.Replace(path)+"?nonesuch=1", nil, "Content-Type", media).want(t, 400, "invalid_parameter")
			_, list, _ := strings.Cut(a.problem(t).Detail, "this route takes ")
			got := slices.Sorted(strings.SplitSeq(list, ", "))
			if list == "none" {
				got = nil
			}
			if want := contractParameters(t, doc, ops["parameters"], op.(map[string]any)["parameters"]); !slices.Equal(got, want) {
				t.Errorf("%s %s takes %v, openapi.yaml has %v", method, path, got, want)
			}
			checked++
		}
	}
	if checked < 20 {
		t.Errorf("only %d operations", checked)
	}
}

// A GET that openapi.yaml gives an If-None-Match has its 304 there, too.
func TestConditionsHaveAnswers(t *testing.T) {
	var doc map[string]any
	if err := yaml.Unmarshal(contractText(), &doc); err != nil {
		t.Fatal(err)
	}
	checked := 0
	for path, item := range doc["paths"].(map[string]any) {
		op, ok := item.(map[string]any)["get"].(map[string]any)
		if !ok {
			continue
		}
		list, _ := op["parameters"].([]any)
		for _, p := range list {
			if p.(map[string]any)["$ref"] != "#/components/parameters/IfNoneMatch" {
				continue
			}
			checked++
			if _, ok := op["responses"].(map[string]any)["304"]; !ok {
				t.Errorf("GET %s takes If-None-Match and has no 304", path)
			}
		}
	}
	if checked < 6 {
		t.Errorf("only %d operations", checked)
	}
}
