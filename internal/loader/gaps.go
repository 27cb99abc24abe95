package loader

// Gaps are the blind spots that decide what the events can be held against.
type Gaps struct {
	FailedRetransmits bool // those given up before they left the socket
	ResetReasons      bool // why a reset was sent
	LoneResets        bool // resets without a socket, told from those of a firewall
	BeforeFirewall    bool // what the packet filter drops on the way out
	Cookies           bool // the cookies of sockets that nobody asked for one
}

// Gaps says what is not seen on this kernel.
func (o *Observer) Gaps() Gaps {
	return Gaps{
		FailedRetransmits: !o.kernel.retransmitHasErr,
		ResetReasons:      !o.kernel.sendResetHasReason,
		LoneResets:        !o.kernel.sendResetNoSocket,
		BeforeFirewall:    o.WireMethod() == MethodPacket,
		Cookies:           !o.kernel.socketCookie,
	}
}
