/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Segments that were dropped. Every buffer that was not used up ends in
 * kfree_skb, with the reason; most that end there lost nothing that TCP misses.
 * They are told apart by reason and header, not by where in the kernel it was.
 */
#ifndef SOCKWATCH_DROP_H
#define SOCKWATCH_DROP_H

#include "headers.h"

const volatile bool kfree_skb_has_reason = true; /* 5.17 */
const volatile bool kfree_skb_has_rx_sk = true;  /* 6.11 */

/* Sets of enum skb_drop_reason as this kernel numbers it, a bit each; see internal/loader. */
#define DROP_REASONS 256
const volatile __u64 drop_nothing[DROP_REASONS / 64]; /* nothing is lost, or another hook tells it */
const volatile __u64 drop_handled[DROP_REASONS / 64]; /* TCP has looked at the header */
const volatile __u64 drop_unsaid[DROP_REASONS / 64];  /* not a reason */

static __always_inline bool among(const volatile __u64 *set, __u32 reason)
{
	__u64 word = reason / 64;

	barrier_var(word); /* the bound is for the verifier to see */
	return word < DROP_REASONS / 64 && (set[word] & (1ULL << (reason % 64)));
}

/* A dropped segment, and where its TCP header is, from skb->head. */
struct dropped {
	struct segment seg;
	__u32 at;
	bool seen; /* its header could be read */
};

/*
 * Finds the TCP header, wherever the kernel was with the buffer. Before the IP
 * header is written only TCP's own pointer says where it is.
 */
static __always_inline void read_dropped(struct dropped *d, const struct sk_buff *skb, bool own)
{
	const unsigned char *head = skb->head;
	__u32 data = skb->data - head, len = 0, left, word;
	const struct tcphdr *th;
	const struct iphdr *ip;

	d->at = skb->transport_header;
	if (!have_rdonly_cast)
		return;
	ip = cast_to(iphdr, head + skb->network_header);
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (BPF_CORE_READ_BITFIELD(ip, version) != 4 || ip->protocol != IPPROTO_TCP ||
		    ip->frag_off & bpf_htons(0x1fff))
			return;
		len = BPF_CORE_READ_BITFIELD(ip, ihl) * 4;
		d->at = skb->network_header + len;
		len = bpf_ntohs(ip->tot_len) - len;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		const struct ipv6hdr *ip6 = cast_to(ipv6hdr, ip);

		if (BPF_CORE_READ_BITFIELD(ip, version) != 6 || ip6->nexthdr != IPPROTO_TCP)
			return;
		d->at = skb->network_header + 40;
		len = bpf_ntohs(ip6->payload_len);
	} else if (skb->protocol || !own) {
		return;
	}
	if (d->at + 20 > data + skb->len - skb->data_len)
		return;
	th = cast_to(tcphdr, head + d->at);
	d->seg.seq = bpf_ntohl(th->seq);
	d->seg.ack = bpf_ntohl(th->ack_seq);
	/* As in read_segment: word 12 has data offset and flags. */
	word = cast_to(tcphdr, head + d->at + 8)->seq;
	d->seg.flags = word >> 8;
	/* A frame may be padded, and a jumbogram says 0. */
	left = data + skb->len - d->at;
	if (len && len < left)
		left = len;
	d->seg.len = left - ((word >> 4) & 0xf) * 4;
	d->seen = true;
}

/* As fill_sock, by a pointer that the helper behind it does not take from everywhere. */
static __always_inline void fill_connection(struct record *r, struct sock *sk)
{
	const struct tcp_sock *tp;

	fill_tuple(r, &sk->__sk_common);
	r->sock_addr = (__u64)sk;
	r->sock_cookie = sk->__sk_common.skc_cookie.counter;
	r->sock_inode = inode_of(sk);
	fill_owner(r, sk, NULL);
	if (have_rdonly_cast)
		tp = cast_to(tcp_sock, sk);
	else
		tp = bpf_skc_to_tcp_sock(sk);
	if (tp)
		fill_tcp(r, sk, tp);
}

SEC("tp_btf/kfree_skb")
int kfree_skb(__u64 *ctx)
{
	struct sk_buff *skb = (void *)ctx[0];
	struct sock *rx_sk = kfree_skb_has_rx_sk ? (void *)ctx[3] : NULL, *sk = NULL;
	__u32 reason = kfree_skb_has_reason ? (__u32)ctx[2] : 0, inode;
	struct net_device *dev = NULL;
	struct dropped d = {};
	struct net *net = NULL;
	struct record *r;
	bool in = true;

	if (kfree_skb_has_reason && among(drop_nothing, reason))
		return 0;
	if (rx_sk) {
		net = rx_sk->__sk_common.skc_net.net;
		sk = rx_sk;
	} else {
		/* Where it was, not whose it is: a segment may have crossed to another namespace. */
		dev = skb->dev;
		sk = skb->sk;
		if (dev)
			net = dev->nd_net.net;
		else if (sk)
			net = sk->__sk_common.skc_net.net;
	}
	if (!net)
		return 0;
	inode = net->ns.inum;
	if (!may_watch(inode))
		return 0;
	if (!rx_sk) {
		if (sk && sk->__sk_common.skc_net.net != net)
			sk = NULL;
		else
			in = skb->skb_iif; /* of the device it came in by */
	}
	if (sk && !is_connection(sk))
		sk = NULL;
	read_dropped(&d, skb, sk && !in);
	if (!d.seen && !sk)
		return 0;
	/*
	 * In TCP's hands a buffer is freed without a reason whether or not its
	 * segment was of use, and an acknowledgement has been of use whatever is said.
	 */
	if (in && (!kfree_skb_has_reason || among(drop_unsaid, reason)) &&
	    (__u32)(skb->data - skb->head) >= d.at)
		return 0;
	if (d.seen && !d.seg.len && !(d.seg.flags & (TCPHDR_SYN | TCPHDR_FIN)) &&
	    kfree_skb_has_reason && among(drop_handled, reason))
		return 0;
	if (!watches(inode))
		return 0;
	r = reserve(PROG_KFREE_SKB, KIND_DROP);
	if (!r)
		return 0;
	fill_net(r, net);
	if (sk)
		fill_connection(r, sk);
	else
		r->flags |= FLAG_NO_SOCK;
	if (d.seen) {
		if (!sk || !r->remote_port) {
			__u16 family = r->family;

			fill_addresses(r, skb, in);
			if (sk)
				r->family = family;
		}
		r->seg_seq = d.seg.seq;
		r->seg_end_seq = end_of(&d.seg);
		r->seg_ack_seq = d.seg.ack;
		r->seg_flags = d.seg.flags;
	}
	if (dev)
		__builtin_memcpy(r->owner_comm, dev->name, sizeof(r->owner_comm));
	if (!in)
		r->flags |= FLAG_OUT;
	r->arg_a = skb->len;
	r->arg_b = reason;
	submit(r);
	return 0;
}

#endif
