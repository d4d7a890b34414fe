package ws

import (
	"errors"
	"io"
	"net"
	"syscall"

	"github.com/coder/websocket"
)

// closeCause says why a connection ended.
type closeCause uint8

const (
	causeClient closeCause = iota // the client closed it
	causeLost                     // it broke
	causeProtocol
	causeBinary
	causeUTF8
	causeTooBig
	causeInternal
	causeSilent
	causeSlow
	causeOverloaded
	causeDraining
	closeCauses
)

// closeNames are the causes in metrics, and the code words with which the
// reasons of close frames begin.
var closeNames = [closeCauses]string{
	"client", "lost", "protocol_error", "unsupported_data", "invalid_utf8", "message_too_big", "internal", "ping_timeout",
	"slow_consumer", "overloaded", "draining",
}

// closeCodes are the codes of close frames. From 4000 on they are ours: 4000 to
// 4499 ask the client to come again, after a while.
var closeCodes = [closeCauses]websocket.StatusCode{
	websocket.StatusNormalClosure, websocket.StatusGoingAway, websocket.StatusProtocolError, websocket.StatusUnsupportedData,
	websocket.StatusInvalidFramePayloadData, websocket.StatusMessageTooBig, websocket.StatusInternalError, websocket.StatusGoingAway,
	4002, 4008, 4010,
}

// readCause is why reading a message failed.
func readCause(err error) closeCause {
	var netError net.Error
	switch {
	case websocket.CloseStatus(err) >= 0:
		return causeClient
	case errors.Is(err, websocket.ErrMessageTooBig):
		return causeTooBig
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), errors.Is(err, io.ErrClosedPipe),
		errors.Is(err, syscall.ECONNRESET), errors.As(err, &netError):
		return causeLost
	default:
		// The library has no error of its own for frames that break the rules.
		return causeProtocol
	}
}
