// Package guestproto is the language that the host and the guest agent speak
// over one pair of byte pipes: frames, and the messages inside them.
//
// # Frames
//
// Every frame is a 24-byte header and a payload, all integers little-endian:
//
//	offset size
//	0      2   magic 'R' 'F'
//	2      1   version (1)
//	3      1   type
//	4      4   payload length, at most MaxPayload
//	8      4   channel: which call the frame belongs to; 0 for the link itself
//	12     8   position: see each type
//	20     4   CRC-32C of header[0:20] followed by the payload
//
// The host opens channels, with numbers that grow from 1 in each session, so
// that a late frame of a finished call can never be taken for another's. The
// host never trusts a frame beyond the sandbox that it came from.
//
// # Session and resynchronisation
//
// A host that attaches sends Preamble: MaxPayload+HeaderSize zero bytes, which
// complete whatever frame a dead predecessor left half-written (its checksum then
// fails, and it is dropped), and then a Hello frame with a 16-byte random nonce.
// The agent ends all channels of the former session (processes go on), drops what
// it had not sent, and answers with a Preamble of its own and then HelloAck with the
// same nonce. The host throws away everything that it reads before that HelloAck,
// half frames included. A reader that meets anything but a valid header searches for
// the next magic; a frame whose checksum fails is dropped whole, so that the work per
// byte stays bounded whatever the bytes are. The two preambles make that safe: what
// a half frame can swallow ends before the Hello or the HelloAck begins. After the
// HelloAck the host takes anything but a valid frame as a broken link.
//
// Both sides list the versions that they speak; the agent picks the highest that
// both know. HelloAck.Version 0 means that there is none.
//
// # Channels
//
//	host  → guest  Open      payload: JSON Open{Method, Params}
//	both           Data      bytes of the call; position: see the method
//	both           Window    position: how many bytes the receiver has room for, from the beginning
//	host  → guest  End       no more Data will come from the host
//	guest → host   Event     payload: JSON; e.g. "started"
//	guest → host   Result    payload: JSON Result; the channel is finished
//	host  → guest  Cancel    end the call; a process goes on unless the method says otherwise
//
// The position of Data counts the bytes from 0 in each direction of a channel. That
// of Stdout and Stderr is the position in the process's numbered output log: the number
// of bytes of both together that came before. Re-joining a process at any position that
// its log still holds therefore needs no other protocol: the event ProcessStarted names
// the position at which the output begins. Where the log no longer held the next byte,
// the position of a frame jumps ahead, and the result counts the bytes as lost.
//
// The position of Window counts the bytes of Data, or of Stdout and Stderr together,
// that the channel carried in one direction: its sender has room for as many since the
// channel was opened. Both directions begin with InitialWindow.
//
// The reader that started a process holds it back: nothing is lost while that
// channel lives. A reader that re-joined holds nobody back, unless it asks to because
// it is the starter again after the link broke.
//
// A process needs no channel: MethodProcessSpawn starts one that nobody follows, and
// MethodProcessInput writes to any, whoever follows. The times in ProcessStart are the
// host's; the agent repeats them, so that the next host finds the deadlines that it has to
// keep. What came after the first version is announced in HelloAck.Capabilities.
package guestproto
