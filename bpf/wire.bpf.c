//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Attached inside a watched namespace, for what no tracepoint shows: probes
 * sent, RST segments that no socket takes, and acknowledgements that arrive in
 * states tcp_probe does not look at.
 *
 * wire_netfilter is a BPF netfilter link at LOCAL_IN and LOCAL_OUT (6.4).
 * wire_packet is a socket filter on an AF_PACKET socket, for older kernels; it
 * sees no socket and keeps how far each connection got instead.
 */
#include "icmp.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The namespace of the AF_PACKET socket: a socket filter cannot ask. */
const volatile __u32 packet_netns_inode;
const volatile __u64 packet_netns_cookie;

const volatile bool every_segment; /* asked for: WIRE_SEEN */

SEC("netfilter")
int wire_netfilter(struct bpf_nf_ctx *ctx)
{
	const struct nf_hook_state *state = ctx->state;
	struct sk_buff *skb = ctx->skb;
	bool out = state->hook == NF_INET_LOCAL_OUT;
	const struct sock *sk = NULL;
	const struct tcp_sock *tp = NULL;
	struct segment seg;
	struct record *r;
	__u8 why = 0;

	if (!read_segment(&seg, skb)) {
		if (!out)
			read_icmp(skb, state->net);
		return 1;
	}
	/* On the way in it is the socket found early, if it was. */
	sk = out ? state->sk : skb->sk;
	if (sk && !is_connection(sk))
		sk = NULL;
	if (seg.flags & TCPHDR_RST) {
		why = WIRE_RST;
	} else if (sk && !(seg.flags & (TCPHDR_SYN | TCPHDR_FIN)) && (seg.flags & TCPHDR_ACK)) {
		__u8 sk_state = sk->__sk_common.skc_state;

		if (sk_state != TCP_CLOSE && sk_state != TCP_SYN_SENT)
			tp = cast_to(tcp_sock, sk);
	}
	if (tp) {
		if (out) {
			if (seg.len == 0 && seg.seq == tp->snd_una - 1)
				why = WIRE_PROBE;
		} else if (sk->__sk_common.skc_state != TCP_ESTABLISHED) {
			if (seg.len == 0 && seg.seq == tp->rcv_nxt - 1)
				why = WIRE_PROBE;
			if ((tp->inet_conn.icsk_retransmits || tp->retrans_out ||
			     tp->tlp_high_seq) &&
			    (__s32)(seg.ack - tp->snd_una) > 0 &&
			    (__s32)(seg.ack - tp->snd_nxt) <= 0)
				why |= WIRE_ACKED;
		}
	}
	if (every_segment)
		why |= WIRE_SEEN;
	if (!why)
		return 1;
	if (!watches(state->net->ns.inum))
		return 1;
	r = reserve(PROG_WIRE, KIND_WIRE);
	if (!r)
		return 1;
	fill_net(r, state->net);
	if (sk && !(why & WIRE_RST)) {
		fill_tuple(r, &sk->__sk_common);
		r->sock_addr = (__u64)sk;
		r->sock_cookie = sk->__sk_common.skc_cookie.counter;
		if (tp && why != WIRE_SEEN) {
			r->sock_inode = inode_of(sk);
			fill_tcp(r, sk, tp);
			fill_owner(r, sk, NULL);
		}
	} else {
		r->flags |= FLAG_NO_SOCK;
		fill_addresses(r, skb, !out);
	}
	r->seg_seq = seg.seq;
	r->seg_end_seq = end_of(&seg);
	r->seg_ack_seq = seg.ack;
	r->seg_flags = seg.flags;
	r->seg_segs = 1;
	r->arg_a = seg.window;
	r->why = why;
	if (tp && (why & WIRE_ACKED))
		fill_echo(r, skb, tp);
	if (out)
		r->flags |= FLAG_OUT;
	submit(r);
	return 1;
}

/*
 * What an AF_PACKET socket sees of a connection, in place of the socket it
 * cannot see: how far each side got, and what was last said about it. The
 * connection's two directions are the fields, local and remote the key.
 */
struct flow_key {
	__u8 local_addr[16];
	__u8 remote_addr[16];
	__u16 local_port;
	__u16 remote_port;
	__u32 netns_inode;
};

struct flow {
	__u64 last_ns[2]; /* what was last recorded, in and out: interfaces show a segment again */
	__u32 last_seq[2];
	__u32 last_ack[2];
	__u32 next[2]; /* one past the highest sequence number, of the remote and of the local end */
	__u32 una;     /* first byte of the local end that is not acknowledged */
	__u16 window[2];
	__u8 last_flags[2];
	__u8 known[2]; /* next was sent, or acknowledged by the other end */
	__u8 has_una;
	__u8 run;    /* something was sent again that nothing has acknowledged */
	__u8 probes; /* sent since something came in */
	__u8 pad[5];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536); /* of all namespaces */
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows SEC(".maps");

#define SAME_SEGMENT_NS 1000000

/* A flow of which nothing is known. Windows are open until someone says otherwise. */
static __always_inline void start(struct flow *f)
{
	__builtin_memset(f, 0, sizeof(*f));
	f->window[0] = f->window[1] = 1;
}

/* The flow of a segment; a new one knows only that segment. */
static __always_inline struct flow *flow_of(const struct flow_key *key)
{
	struct flow *f = bpf_map_lookup_elem(&flows, key);
	struct flow none;

	if (f)
		return f;
	start(&none);
	bpf_map_update_elem(&flows, key, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&flows, key);
}

/*
 * Says why a segment is worth a record, and brings the flow up to date. A probe
 * is empty and one before what comes next. As long as nothing else was seen of
 * a connection, what comes next is not known: the socket has to judge.
 */
static __always_inline __u8 flow_why(struct flow *f, bool out, const struct segment *seg, __u32 end)
{
	bool moves = end != seg->seq, any = f->known[out] || f->next[out];
	__u8 why = 0;

	if (!moves && (seg->flags & ~TCPHDR_PSH) == TCPHDR_ACK) {
		if (any && seg->seq == f->next[out] - 1)
			why = WIRE_PROBE;
		else if (!f->known[out])
			why = WIRE_PROBE | WIRE_UNSURE;
	}
	if (out && moves) {
		if (!f->has_una || (__s32)(seg->seq - f->una) < 0)
			f->una = seg->seq;
		f->has_una = 1;
		if (f->known[1] && (__s32)(end - f->next[1]) <= 0)
			f->run = 1;
	}
	if (!any || (__s32)(end - f->next[out]) > 0)
		f->next[out] = end;
	if (moves)
		f->known[out] = 1;
	if (!(seg->flags & TCPHDR_ACK))
		return why;
	if (!(f->known[!out] || f->next[!out]) || (__s32)(seg->ack - f->next[!out]) > 0)
		f->next[!out] = seg->ack;
	f->known[!out] = 1;
	f->window[out] = seg->window;
	if (!out && (!f->has_una || (__s32)(seg->ack - f->una) > 0)) {
		if (f->run)
			why |= WIRE_ACKED;
		f->una = seg->ack;
		f->has_una = 1;
		f->run = 0;
	}
	return why;
}

/* An ICMP error at off, from the remote end of key or somebody on the way to it. */
static __always_inline void packet_icmp(struct __sk_buff *skb, __u32 off,
					const struct flow_key *key)
{
	bool v4 = skb->protocol == bpf_htons(ETH_P_IP);
	__u8 icmp[8], ip[40], tcp[8];
	struct record *r;

	if (bpf_skb_load_bytes(skb, off, icmp, 8) ||
	    (v4 ? !icmp_error(icmp[0]) : icmp[0] > ICMPV6_ERRORS))
		return;
	off += 8;
	if (bpf_skb_load_bytes(skb, off, ip, v4 ? 20 : 40) || ip[v4 ? 9 : 6] != IPPROTO_TCP)
		return;
	off += v4 ? (ip[0] & 0xf) * 4 : 40;
	if (bpf_skb_load_bytes(skb, off, tcp, 8))
		return;
	r = reserve_icmp(v4 ? AF_INET : AF_INET6, icmp[0], icmp[1],
			 bpf_ntohl(*(__u32 *)(icmp + 4)));
	if (!r)
		return;
	r->netns_inode = packet_netns_inode;
	r->net_cookie = packet_netns_cookie;
	__builtin_memcpy(r->owner_comm, key->remote_addr, 16);
	if (v4) {
		__builtin_memcpy(r->local_addr, key->local_addr, 12); /* its prefix */
		__builtin_memcpy(r->remote_addr, key->local_addr, 12);
		__builtin_memcpy(r->local_addr + 12, ip + 12, 4);
		__builtin_memcpy(r->remote_addr + 12, ip + 16, 4);
	} else {
		__builtin_memcpy(r->local_addr, ip + 8, 16);
		__builtin_memcpy(r->remote_addr, ip + 24, 16);
	}
	r->local_port = tcp[0] << 8 | tcp[1];
	r->remote_port = tcp[2] << 8 | tcp[3];
	r->seg_seq = bpf_ntohl(*(__u32 *)(tcp + 4));
	submit(r);
}

SEC("socket")
int wire_packet(struct __sk_buff *skb)
{
	bool out = skb->pkt_type == PACKET_OUTGOING;
	__u8 why, probes, ip[40], tcp[20], next;
	struct flow_key key = {.netns_inode = packet_netns_inode};
	struct segment seg;
	__u32 off, total, end;
	struct record *r;
	struct flow *f;
	__u64 now;

	if (!out && skb->pkt_type != PACKET_HOST)
		return 0;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, 0, ip, 20))
			return 0;
		off = (ip[0] & 0xf) * 4;
		total = ip[2] << 8 | ip[3];
		next = ip[9];
		*(__u16 *)(key.local_addr + 10) = 0xffff;
		*(__u16 *)(key.remote_addr + 10) = 0xffff;
		__builtin_memcpy((out ? key.local_addr : key.remote_addr) + 12, ip + 12, 4);
		__builtin_memcpy((out ? key.remote_addr : key.local_addr) + 12, ip + 16, 4);
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, 0, ip, 40))
			return 0;
		off = 40;
		total = ip[4] << 8 | ip[5];
		/* A jumbogram says 0. */
		total = total ? total + 40 : skb->len;
		next = ip[6];
		__builtin_memcpy(out ? key.local_addr : key.remote_addr, ip + 8, 16);
		__builtin_memcpy(out ? key.remote_addr : key.local_addr, ip + 24, 16);
	} else {
		return 0;
	}
	if (!out && next == (skb->protocol == bpf_htons(ETH_P_IP) ? IPPROTO_ICMP : IPPROTO_ICMPV6))
		packet_icmp(skb, off, &key);
	if (next != IPPROTO_TCP || bpf_skb_load_bytes(skb, off, tcp, 20))
		return 0;
	key.local_port = out ? tcp[0] << 8 | tcp[1] : tcp[2] << 8 | tcp[3];
	key.remote_port = out ? tcp[2] << 8 | tcp[3] : tcp[0] << 8 | tcp[1];
	seg.seq = bpf_ntohl(*(__u32 *)(tcp + 4));
	seg.ack = bpf_ntohl(*(__u32 *)(tcp + 8));
	seg.flags = tcp[13];
	seg.len = total - off - (tcp[12] >> 4) * 4;
	seg.window = tcp[14] << 8 | tcp[15];
	end = end_of(&seg);

	f = flow_of(&key);
	if (!f)
		return 0;
	if ((seg.flags & TCPHDR_SYN) && !(seg.flags & TCPHDR_ACK) && end != f->next[out])
		start(f); /* the ports are used again */
	probes = f->probes;
	if (seg.flags & TCPHDR_RST)
		why = WIRE_RST;
	else
		why = flow_why(f, out, &seg, end);
	if (!out)
		f->probes = 0;
	if (every_segment)
		why |= WIRE_SEEN;
	if (!why)
		return 0;
	now = bpf_ktime_get_ns();
	if (f->last_seq[out] == seg.seq && f->last_ack[out] == seg.ack &&
	    f->last_flags[out] == seg.flags && now - f->last_ns[out] < SAME_SEGMENT_NS)
		return 0;
	f->last_seq[out] = seg.seq;
	f->last_ack[out] = seg.ack;
	f->last_flags[out] = seg.flags;
	f->last_ns[out] = now;
	if (out && (why & WIRE_PROBE))
		f->probes++;

	r = reserve(PROG_WIRE, KIND_WIRE);
	if (!r)
		return 0;
	r->netns_inode = packet_netns_inode;
	r->net_cookie = packet_netns_cookie;
	r->flags = FLAG_NO_SOCK | (out ? FLAG_OUT : 0);
	r->family = skb->protocol == bpf_htons(ETH_P_IP) ? AF_INET : AF_INET6;
	__builtin_memcpy(r->local_addr, key.local_addr, 16);
	__builtin_memcpy(r->remote_addr, key.remote_addr, 16);
	r->local_port = key.local_port;
	r->remote_port = key.remote_port;
	r->snd_wnd = f->window[0];
	r->rcv_wnd = f->window[1];
	r->snd_una = f->una;
	r->rcv_nxt = f->next[0];
	r->probes_out = probes;
	r->seg_seq = seg.seq;
	r->seg_end_seq = end;
	r->seg_ack_seq = seg.ack;
	r->seg_flags = seg.flags;
	r->seg_segs = 1;
	r->arg_a = seg.window;
	r->why = why;
	submit(r);
	return 0;
}
