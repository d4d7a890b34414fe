package cli

import (
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// CompletionCmd prints a completion script.
type CompletionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"Shell: bash, zsh or fish."`
}

// Help is what `leat completion --help` says beyond its flags.
func (c *CompletionCmd) Help() string {
	return `The line for the file that your shell reads at its start:

    bash  source <(leat completion bash)    ~/.bashrc
    zsh   source <(leat completion zsh)     ~/.zshrc, after compinit
    fish  leat completion fish | source     ~/.config/fish/config.fish`
}

// Run prints the script for the whole command line that it is part of.
func (c *CompletionCmd) Run(std IO, k *kong.Context) error {
	ignoreSIGPIPE()
	places := placesOf(k.Model.Node)
	var script string
	switch c.Shell {
	case "bash":
		script = bashScript(k.Model.Name, places)
	case "zsh":
		script = zshScript(k.Model.Name, places)
	default:
		script = fishScript(k.Model.Name, places)
	}
	_, err := io.WriteString(std.Out, script)
	return quiet(err)
}

// place is what can follow a part of the command line. Path is how one gets there: "" or " topic create".
type place struct {
	path     string
	commands []choice
	flags    []flag
	words    []string // for the argument, if only these will do
	files    bool     // the argument is a file
}

// choice is a word and what it means.
type choice struct{ word, help string }

// flag is one flag with its dashes.
type flag struct {
	choice
	short string // "-h", or ""
	value bool   // a value follows
	words []string
	files bool
}

// placesOf walks a command line, the root first.
func placesOf(node *kong.Node) []place {
	p := place{}
	if node.Type == kong.CommandNode {
		for n := node; n.Type == kong.CommandNode; n = n.Parent {
			p.path = " " + n.Name + p.path
		}
	}
	for _, group := range node.AllFlags(true) {
		for _, f := range group {
			name := flag{
				choice: choice{"--" + f.Name, firstSentence(f.Help)}, value: !f.IsBool() && !f.IsCounter(),
				words: enumOf(f.Value), files: namesFile(f.Value),
			}
			if f.Short != 0 {
				name.short = "-" + string(f.Short)
			}
			p.flags = append(p.flags, name)
		}
	}
	for _, arg := range node.Positional {
		p.words = append(p.words, enumOf(arg)...)
		p.files = p.files || namesFile(arg)
	}
	if node.Name == "help" {
		for _, child := range node.Parent.Children {
			p.words = append(p.words, child.Name)
		}
	}
	var places []place
	for _, child := range node.Children {
		if child.Hidden || child.Type != kong.CommandNode {
			continue
		}
		p.commands = append(p.commands, choice{child.Name, firstSentence(child.Help)})
		places = append(places, placesOf(child)...)
	}
	return append([]place{p}, places...)
}

func enumOf(v *kong.Value) []string {
	if v.Enum == "" {
		return nil
	}
	return v.EnumSlice()
}

// namesFile tells whether the value is a file or a directory.
func namesFile(v *kong.Value) bool {
	kind := ""
	if v.Tag != nil {
		kind = v.Tag.Type
	}
	name := strings.ToLower(v.Name)
	return slices.Contains([]string{"path", "existingfile", "existingdir", "filecontent"}, kind) ||
		strings.HasSuffix(name, "file") || strings.HasSuffix(name, "dir")
}

// firstSentence shortens a help text to what fits beside a word.
func firstSentence(help string) string {
	for _, end := range []string{". ", "; ", ": "} {
		help, _, _ = strings.Cut(help, end)
	}
	return strings.TrimSuffix(help, ".")
}

// quoted is s in single quotes, for any of the shells.
func quoted(s, escapedQuote string) string {
	return "'" + strings.ReplaceAll(s, "'", escapedQuote) + "'"
}

// valued are the names, long and short, of flags that a value follows.
func (p place) valued() []string {
	var names []string
	for _, f := range p.flags {
		if f.value {
			names = append(names, f.names()...)
		}
	}
	return names
}

func (f flag) names() []string {
	if f.short == "" {
		return []string{f.word}
	}
	return []string{f.word, f.short}
}

// walk is the part of a script for bash and zsh that follows the words before the cursor: it leaves the place in p, and
// in expect the flag whose value the cursor is at. WORDS and CURRENT stand for what the shells call them differently.
const walk = `	local p='' expect='' word i
	for ((i = FIRST; i < CURRENT; i++)); do
		word=${WORDS[i]}
		if [[ $word == '=' ]]; then continue; fi
		if [[ -n $expect ]]; then expect=''; continue; fi
		case "$p $word" in
`

// writeWalk writes walk with the cases of the command line.
func writeWalk(b *strings.Builder, places []place, words, current, first string) {
	names := strings.NewReplacer("WORDS", words, "CURRENT", current, "FIRST", first)
	b.WriteString(names.Replace(walk))
	for _, p := range places {
		for _, c := range p.commands {
			b.WriteString("\t\t" + quoted(p.path+" "+c.word, `'\''`) + ") p+=\" $word\" ;;\n")
		}
		if names := p.valued(); len(names) > 0 {
			patterns := make([]string, len(names))
			for i, name := range names {
				patterns[i] = quoted(p.path+" "+name, `'\''`)
			}
			b.WriteString("\t\t" + strings.Join(patterns, " | ") + ") expect=$word ;;\n")
		}
	}
	b.WriteString("\t\tesac\n\tdone\n")
}

// bashScript needs nothing but bash: no bash-completion.
func bashScript(name string, places []place) string {
	var b strings.Builder
	b.WriteString("# bash completion for " + name + ": source <(" + name + " completion bash)\n")
	b.WriteString("_" + name + "() {\n\tlocal cur=${COMP_WORDS[COMP_CWORD]}\n\tCOMPREPLY=()\n")
	writeWalk(&b, places, "COMP_WORDS", "COMP_CWORD", "1")
	b.WriteString("\tif [[ $cur == '=' ]]; then cur=''; fi\n\tcase \"$p:$expect\" in\n")
	for _, p := range places {
		for _, f := range p.flags {
			if !f.value {
				continue
			}
			b.WriteString("\t" + bashPatterns(p.path, f.names()) + ") " + bashReply(f.words, f.files) + " ;;\n")
		}
		commands := make([]string, 0, len(p.commands)+len(p.words))
		for _, c := range p.commands {
			commands = append(commands, c.word)
		}
		var flags []string
		for _, f := range p.flags {
			flags = append(flags, f.names()...)
		}
		b.WriteString("\t" + quoted(p.path+":", `'\''`) + ")\n\t\tif [[ $cur == -* ]]; then " + bashReply(flags, false) +
			"\n\t\telse " + bashReply(append(commands, p.words...), p.files) + "\n\t\tfi\n\t\t;;\n")
	}
	b.WriteString("\tesac\n}\ncomplete -F _" + name + " " + name + "\n")
	return b.String()
}

func bashPatterns(path string, names []string) string {
	patterns := make([]string, len(names))
	for i, name := range names {
		patterns[i] = quoted(path+":"+name, `'\''`)
	}
	return strings.Join(patterns, " | ")
}

// bashReply is the command that offers words, or files, or nothing.
func bashReply(words []string, files bool) string {
	switch {
	case files:
		return `compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$cur"))`
	case len(words) == 0:
		return ":"
	}
	return "COMPREPLY=($(compgen -W " + quoted(strings.Join(words, " "), `'\''`) + ` -- "$cur"))`
}

// zshScript shows what each word means.
func zshScript(name string, places []place) string {
	var b strings.Builder
	b.WriteString("#compdef " + name + "\n# zsh completion for " + name + ": source <(" + name + " completion zsh)\n")
	b.WriteString("_" + name + "() {\n\tlocal cur=${words[CURRENT]}\n\tlocal -a offers\n")
	writeWalk(&b, places, "words", "CURRENT", "2")
	b.WriteString("\tif [[ $cur == --*=* && -z $expect ]]; then\n\t\tcompset -P '*='\n\t\texpect=${cur%%=*}\n\tfi\n\tcase \"$p:$expect\" in\n")
	for _, p := range places {
		for _, f := range p.flags {
			if !f.value {
				continue
			}
			b.WriteString("\t" + bashPatterns(p.path, f.names()) + ") ")
			switch {
			case f.files:
				b.WriteString("_files")
			case len(f.words) > 0:
				b.WriteString("compadd -- " + strings.Join(f.words, " "))
			default:
				b.WriteString("_message " + quoted(f.help, `'\''`))
			}
			b.WriteString(" ;;\n")
		}
		b.WriteString("\t" + quoted(p.path+":", `'\''`) + ")\n\t\tif [[ $cur == -* ]]; then\n\t\t\toffers=(")
		for _, f := range p.flags {
			for _, name := range f.names() {
				b.WriteString("\n\t\t\t\t" + zshOffer(choice{name, f.help}))
			}
		}
		b.WriteString("\n\t\t\t)\n\t\t\t_describe -o flag offers\n\t\telse\n")
		writeZshArgument(&b, p)
		b.WriteString("\t\tfi\n\t\t;;\n")
	}
	b.WriteString("\tesac\n}\ncompdef _" + name + " " + name + "\n")
	return b.String()
}

// writeZshArgument writes what is offered where no flag is meant.
func writeZshArgument(b *strings.Builder, p place) {
	switch {
	case len(p.commands) > 0:
		b.WriteString("\t\t\toffers=(")
		for _, c := range p.commands {
			b.WriteString("\n\t\t\t\t" + zshOffer(c))
		}
		b.WriteString("\n\t\t\t)\n\t\t\t_describe command offers\n")
	case p.files:
		b.WriteString("\t\t\t_files\n")
	case len(p.words) > 0:
		b.WriteString("\t\t\tcompadd -- " + strings.Join(p.words, " ") + "\n")
	default:
		b.WriteString("\t\t\t:\n")
	}
}

func zshOffer(c choice) string {
	return quoted(strings.ReplaceAll(c.word, ":", `\:`)+":"+c.help, `'\''`)
}

// fishScript shows what each word means.
func fishScript(name string, places []place) string {
	var b strings.Builder
	b.WriteString("# fish completion for " + name + ": " + name + " completion fish | source\n")
	b.WriteString("function __" + name + "_at\n\tset -l p ''\n\tset -l skip 0\n\tfor word in (commandline -opc)[2..-1]\n" +
		"\t\tif test $skip = 1\n\t\t\tset skip 0\n\t\t\tcontinue\n\t\tend\n\t\tswitch \"$p $word\"\n")
	for _, p := range places {
		for _, c := range p.commands {
			b.WriteString("\t\t\tcase " + quoted(p.path+" "+c.word, `\'`) + "\n\t\t\t\tset p \"$p $word\"\n")
		}
		if names := p.valued(); len(names) > 0 {
			b.WriteString("\t\t\tcase")
			for _, name := range names {
				b.WriteString(" " + quoted(p.path+" "+name, `\'`))
			}
			b.WriteString("\n\t\t\t\tset skip 1\n")
		}
	}
	b.WriteString("\t\tend\n\tend\n\ttest \"$p\" = \"$argv[1]\"\nend\ncomplete -c " + name + " -f\n")
	for _, p := range places {
		at := "complete -c " + name + " -n " + quoted("__"+name+"_at "+quoted(p.path, `\'`), `\'`)
		for _, c := range p.commands {
			b.WriteString(at + " -a " + c.word + " -d " + quoted(c.help, `\'`) + "\n")
		}
		for _, f := range p.flags {
			b.WriteString(at + " -l " + strings.TrimPrefix(f.word, "--"))
			if f.short != "" {
				b.WriteString(" -s " + strings.TrimPrefix(f.short, "-"))
			}
			switch {
			case f.files:
				b.WriteString(" -r -F")
			case len(f.words) > 0:
				b.WriteString(" -x -a " + quoted(strings.Join(f.words, " "), `\'`))
			case f.value:
				b.WriteString(" -x")
			}
			b.WriteString(" -d " + quoted(f.help, `\'`) + "\n")
		}
		if p.files {
			b.WriteString(at + " -F\n")
		}
		if len(p.words) > 0 {
			b.WriteString(at + " -a " + quoted(strings.Join(p.words, " "), `\'`) + "\n")
		}
	}
	return b.String()
}
