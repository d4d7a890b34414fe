package web

import (
	"html"
	"regexp"
	"strings"
)

// markdown makes HTML of the part of Markdown that the guides and openapi.yaml use: paragraphs, ## headings, lists, code between
// fences, tables, and within a line `code`, **bold** and [links](to).
func markdown(text string) string {
	var out strings.Builder
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i := 0; i < len(lines); {
		line := lines[i]
		switch {
		case strings.TrimSpace(line) == "":
			i++
		case strings.HasPrefix(line, "```"):
			end := i + 1
			for end < len(lines) && lines[end] != "```" {
				end++
			}
			out.WriteString("<pre tabindex=\"0\"><code>" + html.EscapeString(strings.Join(lines[i+1:end], "\n")) + "</code></pre>\n")
			i = end + 1
		case strings.HasPrefix(line, "## "):
			title := line[3:]
			out.WriteString("<h2 id=\"" + slug(title) + "\">" + inline(title) + "</h2>\n")
			i++
		case strings.HasPrefix(line, "* "):
			i = list(&out, lines, i)
		case strings.HasPrefix(line, "|"):
			i = table(&out, lines, i)
		default:
			end := i
			for end < len(lines) && strings.TrimSpace(lines[end]) != "" && !strings.HasPrefix(lines[end], "* ") && !strings.HasPrefix(lines[end], "```") {
				end++
			}
			out.WriteString("<p>" + inline(strings.Join(lines[i:end], " ")) + "</p>\n")
			i = end
		}
	}
	return out.String()
}

// list writes the list that begins at a line, and returns the line behind it.
func list(out *strings.Builder, lines []string, i int) int {
	out.WriteString("<ul>\n")
	for i < len(lines) && strings.HasPrefix(lines[i], "* ") {
		item := lines[i][2:]
		for i++; i < len(lines) && strings.HasPrefix(lines[i], "  "); i++ {
			item += " " + strings.TrimSpace(lines[i])
		}
		out.WriteString("<li>" + inline(item) + "</li>\n")
	}
	out.WriteString("</ul>\n")
	return i
}

func table(out *strings.Builder, lines []string, i int) int {
	out.WriteString("<div class=\"wide\" tabindex=\"0\"><table>\n")
	for first := true; i < len(lines) && strings.HasPrefix(lines[i], "|"); i++ {
		cells := strings.Split(strings.Trim(lines[i], "| "), " | ")
		if strings.HasPrefix(cells[0], "---") {
			continue
		}
		tag := "td"
		if first {
			tag, first = "th", false
		}
		out.WriteString("<tr>")
		for _, cell := range cells {
			out.WriteString("<" + tag + ">" + inline(cell) + "</" + tag + ">")
		}
		out.WriteString("</tr>\n")
	}
	out.WriteString("</table></div>\n")
	return i
}

var (
	codeSpan = regexp.MustCompile("`([^`]+)`")
	boldSpan = regexp.MustCompile(`\*\*([^*]+)\*\*`)
	linkSpan = regexp.MustCompile(`\[([^\]]+)\]\(([^)]+)\)`)
	noSlug   = regexp.MustCompile(`[^a-z0-9]+`)
)

// inline is the text of one line. Code is taken out first, so that nothing in it is taken for a mark.
func inline(text string) string {
	var codes []string
	text = codeSpan.ReplaceAllStringFunc(text, func(s string) string {
		codes = append(codes, "<code>"+html.EscapeString(s[1:len(s)-1])+"</code>")
		return "\x00"
	})
	text = html.EscapeString(text)
	text = boldSpan.ReplaceAllString(text, "<strong>$1</strong>")
	text = linkSpan.ReplaceAllString(text, `<a href="$2">$1</a>`)
	for _, code := range codes {
		text = strings.Replace(text, "\x00", code, 1)
	}
	return text
}

func slug(title string) string {
	return strings.Trim(noSlug.ReplaceAllString(strings.ToLower(title), "-"), "-")
}
