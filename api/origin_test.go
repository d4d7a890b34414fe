package api

import "testing"

// Only origins as browsers send them can be allowed.
func TestCheckOrigin(t *testing.T) {
	for text, good := range map[string]bool{
		"https://a.example": true, "http://localhost:3000": true, "https://*.example.com": true, "http://[::1]:80": true,
		"*": false, "null": false, "": false, "https://": false, "a.example": false, "https://a.example/": false, "https://a.example/x": false,
		"https://*": false, "https://a.*.example": false, "https://*.*.example": false, "ftp://a.example": false, "https://u@a.example": false, "https://a.example?x": false,
	} {
		if err := CheckOrigin(text); (err == nil) != good {
			t.Errorf("%q: %v", text, err)
		}
	}
}
