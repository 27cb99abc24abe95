/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The kernel's types, as far as they are read. Only the members named here are
 * touched; CO-RE moves them to where the running kernel has them. Members that
 * some kernels lack are guarded by bpf_core_field_exists where they are read,
 * and live in a flavour (___suffix) when their type or place changed.
 */
#ifndef SOCKWATCH_VMLINUX_H
#define SOCKWATCH_VMLINUX_H

typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef short __s16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u16 __sum16;
typedef __u32 __wsum;
typedef _Bool bool;

#define NULL ((void *)0)
#define true 1
#define false 0

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
};

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_SK_STORAGE = 24,
	BPF_MAP_TYPE_RINGBUF = 27,
};

enum {
	BPF_F_NO_PREALLOC = 1,
	BPF_SK_STORAGE_GET_F_CREATE = 1,
	BPF_RB_NO_WAKEUP = 1,
	BPF_RB_FORCE_WAKEUP = 2,
	BPF_RB_AVAIL_DATA = 0,
};

/* The context of a socket filter; the helpers' own view, not a kernel type. */
struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
	__u32 queue_mapping;
	__u32 protocol;
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	int counter;
} atomic_t;

typedef struct {
	__s64 counter;
} atomic64_t;

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
	__u64 net_cookie;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct in6_addr {
	union {
		__u8 u6_addr8[16];
		__be32 u6_addr32[4];
	} in6_u;
};

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
	atomic64_t skc_cookie;
	unsigned long skc_flags;
};

typedef struct {
	int owned;
} socket_lock_t;

struct inode {
	unsigned long i_ino;
};

struct file {
	struct inode *f_inode;
};

struct socket {
	struct file *file;
};

struct hlist_node {
	struct hlist_node **pprev;
};

struct timer_list {
	struct hlist_node entry;
	unsigned long expires;
};

struct sock {
	struct sock_common __sk_common;
	socket_lock_t sk_lock;
	int sk_err;
	unsigned long sk_lingertime;
	struct socket *sk_socket;
	__u8 sk_shutdown;
	__u16 sk_type;
	__u16 sk_protocol;
};

/* 6.19: the retransmission timer moved from the connection to the socket. */
struct sock___timer {
	struct timer_list tcp_retransmit_timer;
};

struct inet_sock {
	struct sock sk;
	__be16 inet_sport;
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	struct timer_list icsk_retransmit_timer;
	__u32 icsk_rto;
	__u8 icsk_ca_state : 5;
	__u8 icsk_retransmits;
	__u8 icsk_pending;
	__u8 icsk_backoff;
	__u8 icsk_syn_retries;
	__u8 icsk_probes_out;
	struct {
		__u32 lrcvtime;
	} icsk_ack;
	__u32 icsk_user_timeout;
	__u32 icsk_probes_tstamp;
};

/* Before 6.16. */
struct inet_connection_sock___timeout {
	unsigned long icsk_timeout;
};

struct minmax_sample {
	__u32 t;
	__u32 v;
};

struct minmax {
	struct minmax_sample s[3];
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u64 bytes_received;
	__u64 bytes_acked;
	__u32 rcv_nxt;
	__u32 copied_seq;
	__u32 snd_nxt;
	__u32 snd_una;
	__u32 rcv_tstamp;
	__u32 snd_wnd;
	__u32 tlp_high_seq;
	__u32 srtt_us;
	__u32 rttvar_us;
	struct minmax rtt_min;
	__u32 packets_out;
	__u32 retrans_out;
	__u32 snd_ssthresh;
	__u32 snd_cwnd;
	__u32 rcv_wnd;
	__u32 write_seq;
	__u32 lost_out;
	__u32 sacked_out;
	__u32 undo_marker;
	__u32 retrans_stamp;
	__u32 tsoffset;
	__u32 total_retrans;
	__u8 keepalive_probes;
	unsigned int keepalive_time;
	unsigned int keepalive_intvl;
	bool is_mptcp;
	__u8 tcp_usec_ts : 1;
};

struct request_sock {
	struct sock_common __req_common;
	__u8 num_retrans;
	__u8 num_timeout : 7;
	__u32 timeout;
	struct timer_list rsk_timer;
};

struct inet_request_sock {
	struct request_sock req;
};

struct tcp_request_sock {
	struct inet_request_sock req;
	__u32 rcv_isn;
	__u32 snt_isn;
};

struct inet_timewait_sock {
	struct sock_common __tw_common;
	__be16 tw_sport;
};

struct net_device {
	possible_net_t nd_net;
	char name[16];
	unsigned char addr_len;
};

struct neigh_table {
	int family;
};

struct neighbour {
	struct neigh_table *tbl;
	__u8 nud_state;
	unsigned char ha[32];
	struct net_device *dev;
	__u8 primary_key[0];
};

struct sk_buff {
	struct net_device *dev;
	struct sock *sk;
	__u64 skb_mstamp_ns;
	char cb[48];
	unsigned int len;
	unsigned int data_len;
	int skb_iif;
	__be16 protocol;
	__u16 transport_header;
	__u16 network_header;
	unsigned char *head;
	unsigned char *data;
};

struct tcp_skb_cb {
	__u32 seq;
	__u32 end_seq;
	union {
		__u32 tcp_tw_isn;
		struct {
			__u16 tcp_gso_segs;
			__u16 tcp_gso_size;
		};
	};
	__u8 tcp_flags;
	__u32 ack_seq;
};

struct iphdr {
	__u8 ihl : 4;
	__u8 version : 4;
	__be16 tot_len;
	__be16 frag_off;
	__u8 protocol;
	__be32 saddr;
	__be32 daddr;
};

struct ipv6hdr {
	__be16 payload_len;
	__u8 nexthdr;
	struct in6_addr saddr;
	struct in6_addr daddr;
};

struct tcphdr {
	__be16 source;
	__be16 dest;
	__be32 seq;
	__be32 ack_seq;
	__be16 window;
	__sum16 check;
};

struct nf_hook_state {
	__u8 hook;
	__u8 pf;
	struct sock *sk;
	struct net *net;
};

struct bpf_nf_ctx {
	const struct nf_hook_state *state;
	struct sk_buff *skb;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
	__u64 session_id;
	__u64 seq_num;
};

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
	unsigned int uid;
};

struct cgroup_freezer_state {
	bool e_freeze;
};

struct cgroup {
	struct cgroup_freezer_state freezer;
};

struct cgroup_subsys_state;

struct css_set {
	struct cgroup_subsys_state *subsys[32];
	struct cgroup *dfl_cgrp;
};

/* The freezer of version 1; its cgroup_subsys_state is at its beginning. */
struct freezer {
	unsigned int state;
};

struct task_struct {
	unsigned int flags;
	unsigned int __state;
	unsigned int frozen : 1;
	struct css_set *cgroups;
};

enum cgroup_subsys_id {
	freezer_cgrp_id = 6,
};

enum sock_flags {
	SOCK_DEAD = 0,
	SOCK_DONE = 1,
	SOCK_URGINLINE = 2,
	SOCK_KEEPOPEN = 3,
	SOCK_LINGER = 4,
};

#pragma clang attribute pop

enum {
	TCP_ESTABLISHED = 1,
	TCP_SYN_SENT,
	TCP_SYN_RECV,
	TCP_FIN_WAIT1,
	TCP_FIN_WAIT2,
	TCP_TIME_WAIT,
	TCP_CLOSE,
	TCP_CLOSE_WAIT,
	TCP_LAST_ACK,
	TCP_LISTEN,
	TCP_CLOSING,
	TCP_NEW_SYN_RECV,
};

enum {
	TCP_CA_Open,
	TCP_CA_Disorder,
	TCP_CA_CWR,
	TCP_CA_Recovery,
	TCP_CA_Loss,
};

#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_TCP 6
#define SOCK_STREAM 1
#define PF_KTHREAD 0x00200000
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define IPPROTO_ICMP 1
#define IPPROTO_ICMPV6 58
#define ICMP_DEST_UNREACH 3
#define ICMP_SOURCE_QUENCH 4
#define ICMP_REDIRECT 5
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETERPROB 12
#define ICMPV6_ERRORS 127 /* of type up to */
#define NUD_INCOMPLETE 0x01
#define NUD_PROBE 0x10
#define NUD_FAILED 0x20
#define NUD_VALID 0xde /* PERMANENT, NOARP, REACHABLE, PROBE, STALE, DELAY */
#define NF_INET_LOCAL_IN 1
#define NF_INET_LOCAL_OUT 3
#define PACKET_HOST 0
#define PACKET_OUTGOING 4

#define TCPHDR_FIN 0x01
#define TCPHDR_SYN 0x02
#define TCPHDR_RST 0x04
#define TCPHDR_PSH 0x08
#define TCPHDR_ACK 0x10

#endif
