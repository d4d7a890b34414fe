package broker

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"strings"
	"sync"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types/ref"
)

const (
	// maxFilterText is the longest text of a filter, in bytes.
	maxFilterText = 4 << 10
	// maxFilterNodes and maxFilterDepth bound what the text becomes.
	maxFilterNodes = 2000
	maxFilterDepth = 64
	// maxFilterRegex bounds the instructions of each regular expression. What
	// it takes to run one over a text is their product at most.
	maxFilterRegex = 500
	// maxFilterEstimate is the most steps that a filter may be able to take on a
	// record whose lists have filterListSize elements. Two loops, one in the
	// other, are within it; three are not.
	maxFilterEstimate = 1_000_000_000
	filterListSize    = 1000
	filterTextSize    = 100_000
	// maxFilterSteps is the most steps that a filter takes on a record: about
	// one for each operation and each ten bytes of text that it looks at.
	maxFilterSteps = 1_000_000
)

// The variables of a filter.
const (
	filterKey        = "key"
	filterKeyBytes   = "key_bytes"
	filterValue      = "value"
	filterValueStr   = "value_str"
	filterValueBytes = "value_bytes"
	filterHeaders    = "headers"
	filterOffset     = "offset"
	filterPartition  = "partition"
	filterTimestamp  = "timestamp"
	filterTopic      = "topic"
)

// Filter is a compiled expression in the Common Expression Language (CEL) over
// one record. Its variables:
//
//	key, value_str           string, or null; an error where the bytes are not UTF-8
//	key_bytes, value_bytes   bytes, or null
//	value                    the value as JSON, null for a null value; an error where it is not JSON
//	headers                  map of the headers: a string, bytes where it is not UTF-8, or null;
//	                         of headers of one name the last
//	offset, partition        int
//	timestamp                int, in ms since 1970
//	topic                    string
//
// An integer in JSON is an int, beyond that a uint, and compares exactly; one
// that fits neither, and any other number, is a double. A Filter is immutable
// and safe for concurrent use.
type Filter struct {
	text    string
	program cel.Program
	// loops says that there is a comprehension, so that the time of a record
	// does not follow from the text.
	loops bool
	// regex is the instructions of all regular expressions.
	regex int
}

// String is the text that the filter was made of.
func (f *Filter) String() string { return f.text }

// CompileFilter makes a filter of the text of an expression. Errors:
// ErrInvalidFilter with the line and column, both from 1, of what is wrong;
// ErrFilterBudget for one that might take too many steps.
func CompileFilter(text string) (*Filter, error) {
	switch {
	case strings.TrimSpace(text) == "":
		return nil, fmt.Errorf("%w: it is empty", ErrInvalidFilter)
	case len(text) > maxFilterText:
		return nil, fmt.Errorf("%w: it has %d bytes, at most %d are allowed", ErrInvalidFilter, len(text), maxFilterText)
	case !utf8.ValidString(text):
		return nil, fmt.Errorf("%w: it is not UTF-8", ErrInvalidFilter)
	}
	env, err := filterEnv()
	if err != nil {
		return nil, err
	}
	tree, issues := env.Compile(text)
	if issues.Err() != nil {
		return nil, invalidFilter(issues)
	}
	if t := tree.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("%w: it gives %s, want bool", ErrInvalidFilter, cel.FormatCELType(t))
	}
	f := &Filter{text: text}
	if err := f.inspect(tree.NativeRep()); err != nil {
		return nil, err
	}
	estimate, err := env.EstimateCost(tree, filterSizes{})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidFilter, err)
	}
	if estimate.Max > maxFilterEstimate {
		return nil, fmt.Errorf("%w: the filter might take more than %d steps on a record with lists of %d elements", ErrFilterBudget, maxFilterEstimate, filterListSize)
	}
	f.program, err = env.Program(tree, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(maxFilterSteps),
		cel.CostTrackerOptions(filterCharges...), cel.InterruptCheckFrequency(interruptEvery))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidFilter, err)
	}
	return f, nil
}

// filterEnv is made by the first filter: it takes megabytes that a server
// without filters does not need.
var filterEnv = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		cel.Variable(filterKey, cel.NullableType(cel.StringType)),
		cel.Variable(filterKeyBytes, cel.NullableType(cel.BytesType)),
		cel.Variable(filterValue, cel.DynType),
		cel.Variable(filterValueStr, cel.NullableType(cel.StringType)),
		cel.Variable(filterValueBytes, cel.NullableType(cel.BytesType)),
		cel.Variable(filterHeaders, cel.MapType(cel.StringType, cel.DynType)),
		cel.Variable(filterOffset, cel.IntType),
		cel.Variable(filterPartition, cel.IntType),
		cel.Variable(filterTimestamp, cel.IntType),
		cel.Variable(filterTopic, cel.StringType),
		cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true),
		cel.ParserExpressionSizeLimit(maxFilterText),
		cel.ParserRecursionLimit(maxFilterDepth),
		cel.ExpressionNodeLimit(maxFilterNodes),
		cel.ExpressionNestingDepthLimit(maxFilterDepth),
		cel.RegexProgramSizeLimit(maxFilterRegex),
		cel.ASTValidators(cel.ValidateRegexLiterals(), cel.ValidateTimestampLiterals(), cel.ValidateDurationLiterals()),
	)
})

// filterCharges are the steps of what the library does not count by its work:
// a text that was put together may be searched, and a size is counted.
var filterCharges = []cost.TrackerOption{
	cost.OverloadTracker(overloads.AddString, chargeSizes),
	cost.OverloadTracker(overloads.AddBytes, chargeSizes),
	cost.OverloadTracker(overloads.SizeString, chargeTenth),
	cost.OverloadTracker(overloads.SizeStringInst, chargeTenth),
}

func chargeSizes(args []ref.Val, _ ref.Val) *uint64 {
	n := uint64(1)
	for _, arg := range args {
		n += cost.ActualSize(arg)
	}
	return &n
}

func chargeTenth(args []ref.Val, _ ref.Val) *uint64 {
	n := 1 + cost.ActualSize(args[0])/10
	return &n
}

// invalidFilter tells of the first thing that is wrong.
func invalidFilter(issues *cel.Issues) error {
	errs := issues.Errors()
	if len(errs) == 0 {
		return fmt.Errorf("%w: %w", ErrInvalidFilter, issues.Err())
	}
	first := errs[0]
	if first.Location == nil || first.Location.Line() < 1 {
		return fmt.Errorf("%w: %s", ErrInvalidFilter, first.Message)
	}
	return fmt.Errorf("%w: line %d, column %d: %s", ErrInvalidFilter, first.Location.Line(), first.Location.Column()+1, first.Message)
}

// inspect finds out what the tree may cost, and refuses patterns that are not
// known before the first record.
func (f *Filter) inspect(tree *ast.AST) (err error) {
	ast.PostOrderVisit(tree.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		switch e.Kind() { //nolint:exhaustive // the other kinds cost no more than a step
		case ast.ComprehensionKind:
			f.loops = true
		case ast.CallKind:
			call := e.AsCall()
			if call.FunctionName() != overloads.Matches {
				return
			}
			pattern := call.Args()[len(call.Args())-1]
			text, ok := "", pattern.Kind() == ast.LiteralKind
			if ok {
				text, ok = pattern.AsLiteral().Value().(string)
			}
			if !ok {
				at := tree.SourceInfo().GetStartLocation(pattern.ID())
				err = errors.Join(err, fmt.Errorf("%w: line %d, column %d: matches takes a literal pattern", ErrInvalidFilter, at.Line(), at.Column()+1))
				return
			}
			f.regex += regexSize(text)
		}
	}))
	return err
}

// regexSize is the number of instructions of a pattern that is known to be good.
func regexSize(pattern string) int {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0
	}
	prog, err := syntax.Compile(re.Simplify())
	if err != nil {
		return 0
	}
	return len(prog.Inst)
}

// filterSizes says how large what a filter reads is taken to be, before any
// record is seen.
type filterSizes struct{}

// EstimateSize is cost.Estimator's.
func (filterSizes) EstimateSize(node cost.AstNode) *cost.SizeEstimate {
	if node.ComputedSize() != nil {
		return nil
	}
	size := cost.SizeEstimate{Max: filterListSize}
	if path := node.Path(); len(path) == 1 && (path[0] == filterValueStr || path[0] == filterValueBytes) {
		size.Max = filterTextSize
	}
	return &size
}

// EstimateCallCost is cost.Estimator's.
func (filterSizes) EstimateCallCost(_, _ string, _ *cost.AstNode, _ []cost.AstNode) *cost.CallEstimate {
	return nil
}
