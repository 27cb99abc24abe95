package bpf

// Record is what a program copied out of the kernel: see record.h.
type Record = ObserveRecord

// Counts is what one program did: see record.h.
type Counts = ObserveCounts

// Kind says what a Record holds (enum record_kind).
type Kind = uint8

// The kinds of record.
const (
	KindRetransmit    = Kind(ObserveRecordKindKIND_RETRANSMIT)
	KindSynAck        = Kind(ObserveRecordKindKIND_SYNACK)
	KindState         = Kind(ObserveRecordKindKIND_STATE)
	KindReceive       = Kind(ObserveRecordKindKIND_RECEIVE)
	KindResetReceived = Kind(ObserveRecordKindKIND_RESET_RECEIVED)
	KindResetSent     = Kind(ObserveRecordKindKIND_RESET_SENT)
	KindError         = Kind(ObserveRecordKindKIND_ERROR)
	KindDestroy       = Kind(ObserveRecordKindKIND_DESTROY)
	KindInventory     = Kind(ObserveRecordKindKIND_INVENTORY)
	KindOwner         = Kind(ObserveRecordKindKIND_OWNER)
	KindWire          = Kind(ObserveRecordKindKIND_WIRE)
	KindDrop          = Kind(ObserveRecordKindKIND_DROP)
	KindNeighbour     = Kind(ObserveRecordKindKIND_NEIGHBOUR)
	KindIO            = Kind(ObserveRecordKindKIND_IO)
	KindMax           = Kind(ObserveRecordKindKIND_MAX)
)

// ProgramID is the program that wrote a Record (enum program_id).
type ProgramID = uint8

// The programs.
const (
	ProgRetransmitSkb      = ProgramID(ObserveProgramIdPROG_RETRANSMIT_SKB)
	ProgRetransmitSynack   = ProgramID(ObserveProgramIdPROG_RETRANSMIT_SYNACK)
	ProgSetState           = ProgramID(ObserveProgramIdPROG_SET_STATE)
	ProgTCPProbe           = ProgramID(ObserveProgramIdPROG_TCP_PROBE)
	ProgReceiveReset       = ProgramID(ObserveProgramIdPROG_RECEIVE_RESET)
	ProgSendReset          = ProgramID(ObserveProgramIdPROG_SEND_RESET)
	ProgErrorReport        = ProgramID(ObserveProgramIdPROG_ERROR_REPORT)
	ProgDestroySock        = ProgramID(ObserveProgramIdPROG_DESTROY_SOCK)
	ProgIterTCP            = ProgramID(ObserveProgramIdPROG_ITER_TCP)
	ProgWire               = ProgramID(ObserveProgramIdPROG_WIRE)
	ProgRcvSpaceAdjust     = ProgramID(ObserveProgramIdPROG_RCV_SPACE_ADJUST)
	ProgKfreeSkb           = ProgramID(ObserveProgramIdPROG_KFREE_SKB)
	ProgNeighUpdate        = ProgramID(ObserveProgramIdPROG_NEIGH_UPDATE)
	ProgNeighUpdateDone    = ProgramID(ObserveProgramIdPROG_NEIGH_UPDATE_DONE)
	ProgNeighTimerHandler  = ProgramID(ObserveProgramIdPROG_NEIGH_TIMER_HANDLER)
	ProgNeighEventSendDone = ProgramID(ObserveProgramIdPROG_NEIGH_EVENT_SEND_DONE)
	ProgSockSendLength     = ProgramID(ObserveProgramIdPROG_SOCK_SEND_LENGTH)
	ProgSockRecvLength     = ProgramID(ObserveProgramIdPROG_SOCK_RECV_LENGTH)
	ProgMax                = ProgramID(ObserveProgramIdPROG_MAX)
)

// Why an arriving segment was recorded (enum receive_why).
const (
	ReceiveAcked   = uint8(ObserveReceiveWhyRECEIVE_ACKED)
	ReceiveArrival = uint8(ObserveReceiveWhyRECEIVE_ARRIVAL)
	ReceiveProbe   = uint8(ObserveReceiveWhyRECEIVE_PROBE)
	ReceiveFrozen  = uint8(ObserveReceiveWhyRECEIVE_FROZEN)
)

// Why a segment at the namespace's edge was recorded (enum wire_why).
const (
	WireRST   = uint8(ObserveWireWhyWIRE_RST)
	WireProbe = uint8(ObserveWireWhyWIRE_PROBE)
	WireAcked = uint8(ObserveWireWhyWIRE_ACKED)

	WireUnsure = uint8(ObserveWireWhyWIRE_UNSURE)
	WireICMP   = uint8(ObserveWireWhyWIRE_ICMP)
	WireSeen   = uint8(ObserveWireWhyWIRE_SEEN)
)

// What is known of the freezer when a process wrote or read (enum io_why).
const (
	IOFrozen      = uint8(ObserveIoWhyIO_FROZEN)
	IOFrozenKnown = uint8(ObserveIoWhyIO_FROZEN_KNOWN)
)

// The flags of a Record (enum record_flag).
const (
	FlagFullSock = uint8(ObserveRecordFlagFLAG_FULL_SOCK)
	FlagMPTCP    = uint8(ObserveRecordFlagFLAG_MPTCP)
	FlagKeepOpen = uint8(ObserveRecordFlagFLAG_KEEPOPEN)
	FlagLinger   = uint8(ObserveRecordFlagFLAG_LINGER)
	FlagDead     = uint8(ObserveRecordFlagFLAG_DEAD)
	FlagUser     = uint8(ObserveRecordFlagFLAG_USER)
	FlagOut      = uint8(ObserveRecordFlagFLAG_OUT)
	FlagNoSock   = uint8(ObserveRecordFlagFLAG_NO_SOCK)
)

// How the owner of a socket is known (enum owner_via).
const (
	ViaNone    = uint8(ObserveOwnerViaVIA_NONE)
	ViaConnect = uint8(ObserveOwnerViaVIA_CONNECT)
	ViaListen  = uint8(ObserveOwnerViaVIA_LISTEN)
	ViaRecv    = uint8(ObserveOwnerViaVIA_RECV)
	ViaClose   = uint8(ObserveOwnerViaVIA_CLOSE)
	ViaSend    = uint8(ObserveOwnerViaVIA_SEND)
	ViaCall    = uint8(ObserveOwnerViaVIA_CALL)
)
