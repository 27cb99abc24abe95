package events

import (
	"net/netip"
	"slices"

	"github.com/sockwatch/sockwatch/bpf"
)

// AddOwners names the owners of sockets by their inode, for those born before
// the trace. Sockets that are known already get theirs at once.
func (t *Tracker) AddOwners(owners map[uint64]Owner) { t.owners = owners }

func (t *Tracker) own(s *sock, r *bpf.Record) {
	switch {
	case r.OwnerPid != 0:
		if s.owner.PID != r.OwnerPid || s.raw != r.OwnerComm {
			s.raw = r.OwnerComm
			s.owner = Owner{PID: r.OwnerPid, Comm: t.commName(&r.OwnerComm), Via: viaName(r.OwnerVia)}
		}
	case s.owner.PID != 0:
	case r.SockInode != 0 && len(t.owners) > 0:
		s.owner = t.owners[r.SockInode]
	}
	if s.owner.PID == 0 && !s.listen {
		s.owner = t.listenerOwner(&s.tuple)
	}
}

// listenerOwner is the owner of the listener that a connection was accepted
// from: the one on its address, else on any. Where several processes share
// that, it could be any of them: none is named.
func (t *Tracker) listenerOwner(c *tuple) Owner {
	all := t.listeners[listenKey{c.ns, c.local, c.lport}]
	if len(all) == 0 && netip.AddrFrom16(c.local).Is4In6() {
		all = t.listeners[listenKey{c.ns, any4, c.lport}]
	}
	if len(all) == 0 {
		all = t.listeners[listenKey{c.ns, any6, c.lport}]
	}
	if len(all) == 0 || all[0].owner.PID == 0 {
		return Owner{}
	}
	for _, l := range all[1:] {
		if l.owner.PID != all[0].owner.PID {
			return Owner{}
		}
	}
	return Owner{PID: all[0].owner.PID, Comm: all[0].owner.Comm, Via: "listener"}
}

func (t *Tracker) listens(s *sock) {
	t.listensNot(s)
	s.listen = true
	s.key = listenKey{s.tuple.ns, s.tuple.local, s.tuple.lport}
	t.listeners[s.key] = append(t.listeners[s.key], s)
}

func (t *Tracker) listensNot(s *sock) {
	if !s.listen {
		return
	}
	s.listen = false
	all := slices.DeleteFunc(t.listeners[s.key], func(l *sock) bool { return l == s })
	if len(all) == 0 {
		delete(t.listeners, s.key)
		return
	}
	t.listeners[s.key] = all
}

// commName is the string of a command name, made once for each.
func (t *Tracker) commName(raw *[16]uint8) string {
	name, ok := t.comms[*raw]
	if !ok {
		if len(t.comms) == 4096 { // names can be made up
			clear(t.comms)
		}
		name = cString(raw[:])
		t.comms[*raw] = name
	}
	return name
}
