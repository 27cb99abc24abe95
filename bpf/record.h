/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The record: what a program copies out of the kernel. This is its only
 * definition; Go's view is generated from it and layout_test.go walks its BTF.
 *
 * Widest fields first, padding explicit, never packed. Kernel units: jiffies
 * are jiffies, sequence numbers are absolute. Ports are in host order,
 * addresses are 16 bytes in network order (IPv4 as ::ffff:a.b.c.d).
 */
#ifndef SOCKWATCH_RECORD_H
#define SOCKWATCH_RECORD_H

/* What a record says. */
enum record_kind {
	KIND_NONE,
	KIND_RETRANSMIT,     /* tcp_retransmit_skb: seg_* is the segment, arg_a the error */
	KIND_SYNACK,         /* tcp_retransmit_synack: on a request, sock_* is the listener */
	KIND_STATE,          /* inet_sock_set_state: arg_a old, arg_b new */
	KIND_RECEIVE,        /* tcp_probe: a segment of interest arrived, see receive_why */
	KIND_RESET_RECEIVED, /* tcp_receive_reset */
	KIND_RESET_SENT,     /* tcp_send_reset: seg_* is the segment answered, arg_b the reason */
	KIND_ERROR,          /* inet_sk_error_report */
	KIND_DESTROY,        /* tcp_destroy_sock */
	KIND_INVENTORY,      /* a socket that exists at attach */
	KIND_OWNER,          /* tcp_rcv_space_adjust: a process was seen using the socket */
	KIND_WIRE,           /* a segment at the namespace's edge, see wire_why */
	KIND_DROP, /* kfree_skb: seg_* is the segment, arg_a skb->len, arg_b the reason, owner_comm the device */
	KIND_NEIGHBOUR, /* a neighbour: arg_a state before, arg_b after, see neigh.h */
	KIND_IO,        /* a process wrote or read: arg_a bytes, arg_b MSG_ flags */
	KIND_MAX,
};

/* The program that wrote it; indexes the counters. */
enum program_id {
	PROG_RETRANSMIT_SKB,
	PROG_RETRANSMIT_SYNACK,
	PROG_SET_STATE,
	PROG_TCP_PROBE,
	PROG_RECEIVE_RESET,
	PROG_SEND_RESET,
	PROG_ERROR_REPORT,
	PROG_DESTROY_SOCK,
	PROG_ITER_TCP,
	PROG_WIRE,
	PROG_RCV_SPACE_ADJUST,
	PROG_KFREE_SKB,
	PROG_NEIGH_UPDATE,
	PROG_NEIGH_UPDATE_DONE,
	PROG_NEIGH_TIMER_HANDLER,
	PROG_NEIGH_EVENT_SEND_DONE,
	PROG_SOCK_SEND_LENGTH,
	PROG_SOCK_RECV_LENGTH,
	PROG_MAX,
};

/* Why an arriving segment was recorded (record.why). */
enum receive_why {
	RECEIVE_ACKED = 1,   /* acknowledges something new while a retransmission is out */
	RECEIVE_ARRIVAL = 2, /* data after a silence */
	RECEIVE_PROBE = 4,   /* one before rcv_nxt and empty: keepalive or window probe */
	RECEIVE_FROZEN = 8,  /* data for a process that is frozen, if reads are asked for */
};

/* Why a segment at the edge was recorded (record.why). */
enum wire_why {
	WIRE_RST = 1,
	WIRE_PROBE = 2,
	WIRE_ACKED = 4, /* as RECEIVE_ACKED, where tcp_probe does not look */
	WIRE_UNSURE =
		8, /* a probe if the socket agrees: nothing was seen of the connection before */
	WIRE_ICMP =
		16, /* an ICMP error that quotes the segment: arg_a type, arg_b code, owner_comm who sent it */
	WIRE_SEEN = 32, /* all are asked for; arg_a is the window */
};

/* What is known of the freezer when a process wrote or read (record.why). */
enum io_why {
	IO_FROZEN = 1,
	IO_FROZEN_KNOWN = 2, /* else the kernel has no freezer */
};

/* record.flags */
enum record_flag {
	FLAG_FULL_SOCK = 1, /* tcp_sock fields are filled */
	FLAG_MPTCP = 2,     /* subflow of a Multipath TCP connection */
	FLAG_KEEPOPEN = 4,  /* SO_KEEPALIVE */
	FLAG_LINGER = 8,    /* SO_LINGER is on; linger_jiffies counts */
	FLAG_DEAD = 16,     /* SOCK_DEAD: no process has it open any more */
	FLAG_USER = 32,     /* the socket's lock is held by a process: the running task uses it */
	FLAG_OUT = 64,      /* seg_* goes out, else comes in (KIND_WIRE) */
	FLAG_NO_SOCK = 128, /* no socket took part */
};

/* How the owner is known (record.owner_via). */
enum owner_via {
	VIA_NONE,
	VIA_CONNECT,
	VIA_LISTEN,
	VIA_RECV,
	VIA_CLOSE,
	VIA_SEND,
	VIA_CALL, /* another system call */
};

#pragma clang diagnostic push
#pragma clang diagnostic error "-Wpadded"

struct record {
	__u64 mono_ns;
	__u64 jiffies;
	__u64 net_cookie;
	__u64 sock_cookie;
	__u64 sock_addr; /* address of the struct sock: identifies it while it lives */
	__u64 sock_inode;
	__u64 bytes_acked;
	__u64 bytes_received;
	__u64 timer_expires; /* of icsk_pending, jiffies */
	__u64 linger_jiffies;
	__u64 sent_ns; /* KIND_RETRANSMIT: when TCP handed the segment down; 0: it failed */

	__u8 local_addr[16];
	__u8 remote_addr[16];
	__u8 owner_comm[16];

	__u32 netns_inode;
	__u32 cpu;
	__u32 owner_pid;
	__u32 sk_err;
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 write_seq;
	__u32 rcv_nxt;
	__u32 copied_seq;
	__u32 rto;        /* jiffies */
	__u32 srtt_us;    /* shifted down: microseconds */
	__u32 rttvar_us;  /* shifted down: microseconds */
	__u32 rtt_min_us; /* smallest of the window */
	__u32 snd_cwnd;
	__u32 ssthresh;
	__u32 snd_wnd;
	__u32 rcv_wnd;
	__u32 packets_out;
	__u32 retrans_out;
	__u32 lost_out;
	__u32 sacked_out;
	__u32 total_retrans;
	__u32 retrans_stamp; /* of the first retransmission, CLOCK_MONOTONIC in ms; 0: none */
	__u32 probes_tstamp; /* of the first zero-window probe, jiffies; 0: none */
	__u32 undo_marker;
	__u32 rcv_tstamp; /* last ACK received, jiffies */
	__u32 lrcvtime;   /* last data received, jiffies */
	__u32 user_timeout_ms;
	__u32 keepalive_time; /* jiffies; 0: the sysctl's */
	__u32 keepalive_intvl;
	__u32 seg_seq;
	__u32 seg_end_seq;
	__u32 seg_ack_seq;
	__s32 arg_a;
	__s32 arg_b;

	__u16 family;
	__u16 local_port;
	__u16 remote_port;
	__u16 seg_flags; /* TCP flags as on the wire: FIN 1, SYN 2, RST 4, ... */
	__u16 seg_segs;  /* segments in the buffer (GSO) */

	__u8 kind;
	__u8 program;
	__u8 why;
	__u8 flags;
	__u8 state;
	__u8 ca_state;
	__u8 retransmits;
	__u8 backoff;
	__u8 probes_out;
	__u8 pending;
	__u8 keepalive_probes;
	__u8 syn_retries;
	__u8 owner_via;
	__u8 shutdown; /* sk_shutdown: 1 receiving, 2 sending */
	__u8 pad[4];
};

/* What each program did, per CPU. produced - lost were written to the ring. */
struct counts {
	__u64 produced;
	__u64 lost;
};

#pragma clang diagnostic pop

#endif
