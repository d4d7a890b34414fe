package rest

import (
	"encoding/base64"
	"strconv"

	"leat/api"
)

// maxListed is how many items one answer of a list has at most.
const maxListed = 1000

// page says which part of a list an answer has: those behind the key after, if
// one is given, and at most limit of them.
type page struct {
	limit int
	after string
	given bool
}

// pageParams reads the parameters limit and page_token. valid says whether a
// token's text is a key of the list.
func pageParams(ps params, valid func(key string) bool) (page, error) {
	limit, err := ps.integer("limit", 1, maxListed, maxListed)
	if err != nil {
		return page{}, err
	}
	pg := page{limit: int(limit)}
	token, given := ps.get("page_token")
	if !given {
		return pg, nil
	}
	key, err := api.AppendBase64(nil, base64.RawURLEncoding, []byte(token))
	if err != nil || !valid(string(key)) {
		return page{}, api.InvalidParameter("page_token", "want the next_page_token of an earlier answer")
	}
	pg.after, pg.given = string(key), true
	return pg, nil
}

// pageToken is the token of a page that ends with the key.
func pageToken(key string) *string {
	token := base64.RawURLEncoding.EncodeToString([]byte(key))
	return &token
}

// cut is the part of items that the page has, and the token of the next, nil if
// there is none. key gives the key of an item; before reports whether it comes
// before the key after in the list's order, or is that one.
func cut[T any](pg page, items []T, key func(*T) string, before func(*T) bool) ([]T, *string) {
	first := 0
	for pg.given && first < len(items) && before(&items[first]) {
		first++
	}
	items = items[first:]
	if len(items) <= pg.limit {
		return items, nil
	}
	return items[:pg.limit], pageToken(key(&items[pg.limit-1]))
}

// numberKey reads a key that is a number of a partition.
func numberKey(key string) (int32, bool) {
	n, err := strconv.ParseUint(key, 10, 31)
	return int32(n), err == nil && strconv.FormatUint(n, 10) == key
}
