package group

// ordered is a heap, for container/heap, of what knows its place in it.
type ordered[T placed[T]] []T

// placed is what may be in an ordered.
type placed[T any] interface {
	before(other T) bool
	// place is where it is, -1 for nowhere.
	place() *int
}

func (o ordered[T]) Len() int           { return len(o) }
func (o ordered[T]) Less(i, j int) bool { return o[i].before(o[j]) }
func (o ordered[T]) Swap(i, j int) {
	o[i], o[j] = o[j], o[i]
	*o[i].place(), *o[j].place() = i, j
}

// Push is for container/heap.
func (o *ordered[T]) Push(x any) {
	v := x.(T)
	*v.place() = len(*o)
	*o = append(*o, v)
}

// Pop is for container/heap.
func (o *ordered[T]) Pop() any {
	last := len(*o) - 1
	v := (*o)[last]
	clear((*o)[last:])
	*o, *v.place() = (*o)[:last], -1
	return v
}
