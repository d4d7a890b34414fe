package contract

import (
	"encoding/json"
	"fmt"
)

// Problem is what the contract says of a code of an error.
type Problem struct {
	Title  string `json:"title"`
	Status []int  `json:"status"`
	// Retriable is "true", "false" or "unclear".
	Retriable string `json:"-"`
	Text      string `json:"text"`
}

// Problems are the codes that the contract lists.
func (c *Contract) Problems() map[string]Problem {
	entries, _ := c.codeSchema()["x-problems"].(map[string]any)
	out := map[string]Problem{}
	for code, entry := range entries {
		var p Problem
		text, err := json.Marshal(entry)
		if err == nil {
			err = json.Unmarshal(text, &p)
		}
		if err != nil {
			p = Problem{} // an entry without anything
		}
		fields, _ := entry.(map[string]any)
		p.Retriable = fmt.Sprint(fields["retriable"])
		out[code] = p
	}
	return out
}

func (c *Contract) codeSchema() map[string]any {
	return c.deref(map[string]any{"$ref": "#/components/schemas/ProblemCode"})
}

// codeEnum is the list of the codes that an answer may have.
func (c *Contract) codeEnum() (codes []string) {
	values, _ := c.codeSchema()["enum"].([]any)
	for _, v := range values {
		codes = append(codes, fmt.Sprint(v))
	}
	return codes
}
