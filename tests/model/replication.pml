/* Partition replication, as small as it can be said (docs/architecture.md; commit rules isr and quorum).
 *
 * N replicas, R records in all, E leader epochs. A record is a number, unique for ever; epoch_of says in which leader
 * epoch it was appended. Each process Replica(r) is a bag of atomic steps, so that a state is the variables only.
 * What is told between servers is abstracted to where its delay matters:
 *   - a server learns the controller's present state at any time, or never; it may skip states
 *   - a follower copies one record a time; telling the leader how far it is durable is a step of its own, and one
 *     such message may be held back and arrive at any time later, also after a restart (`late`)
 *   - a proposed ISR stays on its way until another one is sent, whatever its sender hears or believes; it may be
 *     applied later, or twice
 * A lossy crash loses any part of what was not flushed. With LOSSES the server may lose flushed records too (flush
 * policy `os`, or a wiped directory) and says so when it registers.
 *
 * With CONFIRM leaders ask their voters whether they still lead (core/vouching.py, leadership.py): every replica that
 * the controller could elect, as far as the leader knows. A voter answers only while it follows in the leader's epoch.
 * Once all voters have answered, no leader of a newer epoch may have begun before the leader asked. Time is left out:
 * how long a confirmation counts is a question of clocks, which the walks and the simulation have.
 *
 * Checked in every state: committed records are for ever the same, every member of the ISR and the ELR (in its life)
 * holds all of them durably, so does every new leader; one leader per leader epoch; log matching; no log is cut below
 * its own high watermark; a leader's maximal ISR contains the controller's ISR.
 *
 * -DM_... breaks one rule each (mutants.py says which); the check must then fail.
 */

#ifndef N
#define N 3
#endif
#ifndef R
#define R 3
#endif
#ifndef E
#define E 4        /* leader epochs 1..E */
#endif
#ifndef MIN
#define MIN 1      /* min_insync_replicas */
#endif
#ifndef CRASHES
#define CRASHES 1  /* that lose unflushed records */
#endif
#ifndef LOSSES
#define LOSSES 0   /* that lose flushed ones, too */
#endif
#ifndef FENCES
#define FENCES 1   /* sessions that end while their owner lives on, or is down */
#endif
#ifndef ALTERS
#define ALTERS 2   /* ISR proposals */
#endif
#ifndef LATES
#define LATES 0    /* messages held back */
#endif

#define ALL ((1 << N) - 1)
#define BIT(x) (1 << (x))
#define HAS(set, x) (((set) >> (x)) & 1)
#define NOBODY N
#define AT(r, i) log[(r) * R + (i)]
#define POS(l, f) pos[(l) * N + (f)]      /* 1 + durable offset of f as l knows it in its epoch; 0: unknown */
#define LIFE(l, f) seen[(l) * N + (f)]    /* life of f in which it told that */
#define COUNTED(l) (lisr[l] | prop[l])
#define LEADS(r) (up[r] && vl[r] == (r))

/* logs; `leo` up to the log end, `dur` up to where it is flushed */
byte log[N * R];
byte leo[N];
byte dur[N];
byte hw[N];
byte epoch_of[R + 1];
byte made;

/* the controller */
byte isr = ALL;
byte elr;
byte live = ALL;
byte cl;              /* leader */
byte ce = 1;          /* leader epoch */
byte life[N];         /* broker epochs */
byte sealing;         /* quorum: which are sealed; bit N: the epoch is being sealed */
byte sealed_at[N];    /* 16 * last epoch + end */

/* the servers: what each knows */
bool up[N] = true;
bool hurt[N];         /* lost flushed records, and has not told the controller yet */
byte ve[N] = 1;       /* leader epoch; 0: nothing known in this life */
byte vl[N];           /* leader */
bool agreed[N] = true;/* the dialogue is over */

/* leaders */
byte lisr[N];
bool stale[N];        /* the controller has a newer epoch than the leader knows */
byte prop[N];         /* proposed ISR; 0: none */
byte start[N];
byte pos[N * N];
byte seen[N * N];

#ifdef CONFIRM
/* leaders that ask their voters */
byte known_elr[N];
bool asks[N];
byte confirmed[N];    /* voters that have answered since it asked */
bool superseded[N];   /* the ghost: a newer leader had begun when it asked */
byte begun = 1;       /* the ghost: the newest leader epoch that a leader has begun */
#endif

/* messages on their way */
byte am_isr;          /* the last proposal sent, while nothing has changed since: am_new joins in life am_life */
byte am_new;
byte am_life;
byte late;            /* 0: none; else 1 + sender */
byte late_epoch;
byte late_pos;
byte late_life;

/* budgets, and the ghost */
byte crashes; byte losses; byte fences; byte alters; byte lates;
byte com[R];
byte ncom;

/* scratch, zero between steps */
hidden byte i; hidden byte j; hidden byte k; hidden byte n; hidden byte h; hidden byte cut; hidden byte a; hidden byte g;
hidden byte gend; hidden byte nl; hidden byte nisr; hidden byte nelr; hidden byte best;

inline holds(r) {     /* r holds everything committed, flushed */
    k = 0;
    do
    :: k < ncom -> assert(k < dur[r] && AT(r, k) == com[k]); k++
    :: else -> break
    od;
    k = 0
}

inline check_members() {
    j = 0;
    do
    :: j < N ->
        if
#ifdef QUORUM
        :: false
#else
        :: HAS(isr | elr, j) && !hurt[j] -> holds(j)
#endif
        :: else
        fi;
        j++
    :: else -> break
    od;
    j = 0
}

inline check_matching(r) {   /* the last record of r against all logs */
    j = 0;
    do
    :: j < N ->
        if
        :: j != r && leo[j] >= leo[r] && epoch_of[AT(j, leo[r] - 1)] == epoch_of[AT(r, leo[r] - 1)] ->
            k = 0;
            do
            :: k < leo[r] -> assert(AT(j, k) == AT(r, k)); k++
            :: else -> break
            od
        :: else
        fi;
        j++
    :: else -> break
    od;
    j = 0; k = 0
}

inline popcount(set) {
    n = 0; k = 0;
    do
    :: k < N -> n = n + HAS(set, k); k++
    :: else -> break
    od
}

inline advance(l) {   /* the leader's high watermark, and the ghost with it */
    h = hw[l];
#ifdef QUORUM
    j = leo[l];
    do
    :: j > hw[l] ->
        n = 0; k = 0;
        do
        :: k < N ->
            if
            :: k == l && dur[l] >= j && HAS(lisr[l], l) -> n++
            :: k != l && POS(l, k) > j && HAS(lisr[l], k) -> n++
            :: else
            fi;
            k++
        :: else -> break
        od;
        if
#ifdef M_NO_OWN_EPOCH
        :: 2 * n > N -> h = j; break
#else
        :: 2 * n > N && j > start[l] -> h = j; break
#endif
        :: else -> j--
        fi
    :: else -> break
    od;
#else
    popcount(lisr[l]);
    if
#ifdef M_MIN_IGNORED
    :: true ->
#else
    :: n >= MIN ->
#endif
#ifdef M_LEADER_UNFLUSHED
        h = leo[l];
#else
        h = dur[l];
#endif
        k = 0;
        do
        :: k < N ->
            if
#ifdef M_COMMITTED_ISR_ONLY
            :: k != l && HAS(lisr[l], k) && (POS(l, k) == 0 || POS(l, k) - 1 < h) ->
#else
#ifdef M_SHRINK_AT_ONCE
            :: k != l && HAS((prop[l] != 0 -> prop[l] : lisr[l]), k) && (POS(l, k) == 0 || POS(l, k) - 1 < h) ->
#else
            :: k != l && HAS(COUNTED(l), k) && (POS(l, k) == 0 || POS(l, k) - 1 < h) ->
#endif
#endif
                h = (POS(l, k) == 0 -> 0 : POS(l, k) - 1)
            :: else
            fi;
            k++
        :: else -> break
        od
    :: else
    fi;
#endif
    if
    :: h > hw[l] ->
        hw[l] = h; k = 0;
        do
        :: k < h ->
            if
            :: k < ncom -> assert(com[k] == AT(l, k))
            :: else -> com[ncom] = AT(l, k); ncom++
            fi;
            k++
        :: else -> break
        od;
        check_members()
    :: else
    fi;
    h = 0; n = 0
}

inline forget_leading(r) {
#ifndef FOLLOWER_HW
    hw[r] = 0;
#endif
    lisr[r] = 0; stale[r] = false; prop[r] = 0; start[r] = 0; k = 0;
#ifdef CONFIRM
    known_elr[r] = 0; asks[r] = false; superseded[r] = false;
    confirmed[r] = 0;
#endif
    do
    :: k < N -> POS(r, k) = 0; LIFE(r, k) = 0; k++
    :: else -> break
    od;
    k = 0
}

/* A new epoch: proposals made for an older one are refused from here on. */
inline changed() {
    am_isr = 0; am_new = 0; am_life = 0; k = 0;
    do
    :: k < N -> stale[k] = LEADS(k) && ve[k] == ce; k++
    :: else -> break
    od;
    k = 0
}

inline post(r, joining, in_life) {   /* ... also where the sender has not heard of the newer epoch yet */
    if
    :: !stale[r] && ve[r] == ce -> am_isr = prop[r]; am_new = joining; am_life = in_life
    :: else
    fi
}

/* --- the controller's rules --------------------------------------------------------------------------- */

inline first_of(set) {
    nl = NOBODY; k = N;
    do
    :: k > 0 ->
        k--;
        if
        :: HAS(set, k) -> nl = k
        :: else
        fi
    :: else -> break
    od
}

/* The ISR becomes nisr; those who leave it go to the ELR but for `unsafe`; the leader follows from it. */
inline settle(renew, unsafe) {
    popcount(nisr);
#ifdef M_ELR_KEEPS_UNSAFE
    nelr = (elr | isr) & ~nisr;
#else
    nelr = (elr | isr) & ~nisr & ~(unsafe);
#endif
    if
    :: n >= MIN -> nelr = 0
    :: else
    fi;
    if
    :: !(renew) && cl != NOBODY && HAS(nisr & live, cl) -> nl = cl
    :: else ->
        first_of(nisr & live);
        if
        :: nl == NOBODY ->
            first_of(nelr & live);
            if
            :: nl != NOBODY ->
                nelr = (nelr | nisr) & ~BIT(nl) & ~(unsafe); nisr = BIT(nl);
#if MIN == 1
                nelr = 0
#endif
            :: else
            fi
        :: else
        fi;
        if
        :: nl != NOBODY || cl != NOBODY ->
            ce++;
#ifdef M_RESUME
            if
            :: nl == cl -> ce--
            :: else
            fi
#endif
        :: else
        fi
    fi;
    if
    :: nl != cl || nisr != isr || nelr != elr || (renew) -> changed()
    :: else
    fi;
    cl = nl; isr = nisr; elr = nelr; nl = 0; nisr = 0; nelr = 0; n = 0;
    check_members()
}

inline begin_sealing() {
    cl = NOBODY; ce++; changed(); sealing = BIT(N);
    k = 0;
    do
    :: k < N -> sealed_at[k] = 0; k++
    :: else -> break
    od;
    k = 0
}

/* --- the dialogue of a follower with its leader (KIP-101, KIP-279), all rounds at once ------------------- */

inline end_of(r, asked) {   /* g: largest epoch <= asked in the log of r, 0: none; gend: where it ends */
    g = 0; gend = 0;
    do
    :: gend < leo[r] && epoch_of[AT(r, gend)] <= asked -> g = epoch_of[AT(r, gend)]; gend++
    :: else -> break
    od
}

inline dialogue(f, l) {
    cut = leo[f];
    if
    :: leo[f] == 0
    :: else ->
#ifdef M_TRUNCATE_TO_HW
        cut = hw[f];
#else
        a = epoch_of[AT(f, leo[f] - 1)];
#ifdef M_NO_EPOCH_IN_ANSWER
        end_of(l, a);
        cut = (gend < leo[f] -> gend : leo[f]);
#else
        do
        :: true ->
            end_of(l, a); h = g; j = gend;
            if
            :: h == 0 -> cut = 0; break
            :: else
            fi;
            end_of(f, h);
            if
            :: g == h -> cut = (j < gend -> j : gend); break
            :: g == 0 -> cut = 0; break
            :: else -> a = g
            fi
        od;
#endif
#endif
    fi;
#ifndef M_NEVER_TRUNCATE
    assert(cut >= hw[f]);
    k = cut;
    do
    :: k < leo[f] -> AT(f, k) = 0; k++
    :: else -> break
    od;
    leo[f] = cut;
    dur[f] = (dur[f] < cut -> dur[f] : cut);
    check_members();
#endif
    cut = 0; h = 0; a = 0; g = 0; gend = 0; j = 0
}

/* f tells l that it is durable up to p (1 + offset) in life y */
inline hear(l, f, p, y) {
    if
#ifdef M_NO_BROKER_EPOCH
    :: (p) > POS(l, f) -> POS(l, f) = p; LIFE(l, f) = life[f]
#else
    :: (y) > LIFE(l, f) || ((y) == LIFE(l, f) && (p) > POS(l, f)) -> POS(l, f) = p; LIFE(l, f) = y
#endif
    :: else
    fi;
    advance(l)
}

#ifdef M_ACK_UNFLUSHED
#define FLUSH(r) skip
#else
#define FLUSH(r) dur[r] = leo[r]
#endif

#ifdef M_JOIN_AT_HW
#define MAY_JOIN(r, l) (!HAS(lisr[l], r) && POS(l, r) > hw[l])
#else
#define MAY_JOIN(r, l) (!HAS(lisr[l], r) && POS(l, r) > hw[l] && POS(l, r) > start[l])
#endif

#define FOLLOWS(r, l) (up[r] && vl[r] == (l) && (l) != (r) && up[l] && vl[l] == (l) && ve[r] == ve[l] && ve[r] > 0)

#ifdef CONFIRM
#ifdef QUORUM
#ifdef M_MINORITY_CONFIRMS
#define CONFIRMED(l) true
#else
#define CONFIRMED(l) (2 * (1 + HAS(confirmed[l], ((l) + 1) % N) + HAS(confirmed[l], ((l) + 2) % N)) > N)
#if N != 3
#error a majority is counted of three replicas
#endif
#endif
#else
#ifdef M_VOTERS_ARE_THE_KNOWN_ISR
#define VOTERS(l) ((lisr[l] | known_elr[l]) & ~BIT(l))
#else
#ifdef M_VOTERS_WITHOUT_ELR
#define VOTERS(l) (COUNTED(l) & ~BIT(l))
#else
#define VOTERS(l) ((COUNTED(l) | known_elr[l]) & ~BIT(l))
#endif
#endif
#define CONFIRMED(l) ((VOTERS(l) & ~confirmed[l]) == 0)
#endif
#endif

/* The server is down; its log ends at f. */
inline down(r) {
    k = f;
    do
    :: k < leo[r] -> AT(r, k) = 0; k++
    :: else -> break
    od;
    leo[r] = f; dur[r] = f; hw[r] = (hw[r] < f -> hw[r] : f); f = 0;
    up[r] = false; ve[r] = 0; vl[r] = NOBODY; agreed[r] = false; forget_leading(r)
}

proctype Replica(byte me) {
    byte f;
    do
    /* a record from a producer */
    :: d_step { LEADS(me) && made < R && leo[me] < R ->
        made++; epoch_of[made] = ve[me]; AT(me, leo[me]) = made; leo[me]++; check_matching(me);
#ifdef M_LEADER_UNFLUSHED
        advance(me)
#endif
    }
    /* a flush of the leader's; a follower flushes just before it tells: a crash may keep what was not flushed */
    :: d_step { LEADS(me) && dur[me] < leo[me] -> dur[me] = leo[me]; advance(me) }
    /* news of the controller: another leader epoch */
    :: d_step { up[me] && ve[me] != ce ->
        if
        :: vl[me] == me -> forget_leading(me)
        :: else
        fi;
        ve[me] = ce; vl[me] = cl; agreed[me] = false;
        if
        :: cl == me ->
            j = 0;
            do
            :: j < N -> assert(j == me || !LEADS(j) || ve[j] != ce); j++
            :: else -> break
            od;
            holds(me);
#ifdef CONFIRM
            known_elr[me] = elr; begun = (ve[me] > begun -> ve[me] : begun);
#endif
            start[me] = leo[me]; lisr[me] = isr; stale[me] = false; agreed[me] = true; advance(me)
        :: else
        fi
    }
    /* news of the controller: another ISR in the same leader epoch */
    :: d_step { LEADS(me) && ve[me] == ce && stale[me] ->
#ifdef CONFIRM
        known_elr[me] = elr;
#endif
        lisr[me] = isr; stale[me] = false; prop[me] = 0; advance(me)
    }
#ifdef CONFIRM
    /* a leader asks its voters, who answer while they follow it; when all have, nobody had taken its place before */
    :: d_step { LEADS(me) && !asks[me] ->
        asks[me] = true;
#ifndef M_KEEP_CONFIRMATIONS
        confirmed[me] = 0;
#endif
        superseded[me] = begun > ve[me]
    }
#ifdef M_CONFIRM_IN_ANY_EPOCH
    :: d_step { up[me] && LEADS((me + 1) % N) && asks[(me + 1) % N] && !HAS(confirmed[(me + 1) % N], me) ->
        confirmed[(me + 1) % N] = confirmed[(me + 1) % N] | BIT(me)
    }
#endif
    :: d_step { vl[me] < N && FOLLOWS(me, vl[me]) && asks[vl[me]] && !HAS(confirmed[vl[me]], me) ->
        confirmed[vl[me]] = confirmed[vl[me]] | BIT(me)
    }
    :: d_step { LEADS(me) && asks[me] && CONFIRMED(me) -> assert(!superseded[me]); asks[me] = false }
#endif
    /* a follower agrees on the past, copies, and tells how far it is */
    :: d_step { vl[me] < N && FOLLOWS(me, vl[me]) && !agreed[me] -> dialogue(me, vl[me]); agreed[me] = true }
    :: d_step { vl[me] < N && FOLLOWS(me, vl[me]) && agreed[me] && leo[me] < leo[vl[me]] ->
        AT(me, leo[me]) = AT(vl[me], leo[me]); leo[me]++; check_matching(me);
#ifdef FOLLOWER_HW
        hw[me] = (hw[vl[me]] < leo[me] -> (hw[vl[me]] > hw[me] -> hw[vl[me]] : hw[me]) : leo[me])
#endif
    }
#ifdef FOLLOWER_HW
    :: d_step { vl[me] < N && FOLLOWS(me, vl[me]) && agreed[me] && hw[me] < hw[vl[me]] && hw[me] < leo[me] ->
        hw[me] = (hw[vl[me]] < leo[me] -> hw[vl[me]] : leo[me])
    }
#endif
    :: d_step { vl[me] < N && FOLLOWS(me, vl[me]) && agreed[me] && (POS(vl[me], me) != 1 + leo[me] || LIFE(vl[me], me) != life[me]) ->
        FLUSH(me);
        hear(vl[me], me, 1 + leo[me], life[me])
    }
    /* the same told, but it comes late */
    :: d_step { lates < LATES && late == 0 && vl[me] < N && FOLLOWS(me, vl[me]) && agreed[me] ->
        FLUSH(me);
        lates++; late = 1 + me; late_epoch = ve[me]; late_pos = 1 + leo[me]; late_life = life[me]
    }
    :: d_step { late != 0 && LEADS(me) && ve[me] == late_epoch ->
        f = late - 1; hear(me, f, late_pos, late_life); f = 0; late = 0; late_epoch = 0; late_pos = 0; late_life = 0
    }
#ifdef M_ANY_EPOCH
    :: d_step { vl[me] < N && up[me] && agreed[me] && vl[me] != me && LEADS(vl[me]) && ve[me] != ve[vl[me]] ->
        hear(vl[me], me, 1 + leo[me], life[me])
    }
#endif
    /* proposals */
#ifndef QUORUM
    :: d_step { LEADS(me) && prop[me] == 0 && alters < ALTERS && (lisr[me] & ~BIT(me)) != 0 ->
        alters++;
        first_of(lisr[me] & ~BIT(me)); prop[me] = lisr[me] & ~BIT(nl); nl = 0;
        post(me, NOBODY, 0);
        advance(me)
    }
    :: d_step { LEADS(me) && prop[me] == 0 && alters < ALTERS && (lisr[me] & ~BIT(me)) != 0 ->
        alters++; k = N;
        do     /* the last one instead of the first */
        :: k > 0 -> k--;
            if
            :: k != me && HAS(lisr[me], k) -> break
            :: else
            fi
        od;
        prop[me] = lisr[me] & ~BIT(k);
        post(me, NOBODY, 0);
        advance(me)
    }
#endif
    :: d_step { vl[me] < N && FOLLOWS(me, vl[me]) && prop[vl[me]] == 0 && alters < ALTERS && MAY_JOIN(me, vl[me]) ->
        alters++; f = vl[me];
        prop[f] = lisr[f] | BIT(me);
        post(f, me, LIFE(f, me));
        advance(f); f = 0
    }
#ifdef M_FORGET_PROPOSAL
    :: d_step { LEADS(me) && prop[me] != 0 -> prop[me] = 0; advance(me) }
#endif
    /* ... which the controller takes, once, if nothing has changed since */
    :: d_step { me == 0 && am_isr != 0 ->
        if
#ifdef M_NO_LIFE_CHECK
        :: true ->
#else
        :: am_new == NOBODY || (HAS(live, am_new) && life[am_new] == am_life) ->
#endif
            nisr = am_isr;
#ifdef QUORUM
            isr = nisr; nisr = 0; changed()
#else
            settle(false, 0); changed()
#endif
        :: else -> changed()
        fi;
        if
        :: LEADS(cl) && ve[cl] == ce ->
#ifndef QUORUM
            assert((isr & ~COUNTED(cl)) == 0)
#endif
        :: else
        fi
    }
    /* sessions end and begin again; reports replace a leader that lives */
    :: d_step { HAS(live, me) && fences < FENCES && ce < E ->
        fences++; live = live & ~BIT(me);
#ifdef QUORUM
        if
        :: cl == me -> begin_sealing()
        :: else
        fi
#else
        nisr = isr & ~BIT(me);
        if
        :: nisr == 0 -> nisr = isr
        :: else
        fi;
        settle(false, 0)
#endif
    }
    :: d_step { !HAS(live, me) && up[me] && ve[me] != 255 && ce < E ->
        live = live | BIT(me);
#ifndef QUORUM
        nisr = isr; settle(false, 0)
#endif
    }
    :: d_step { cl == me && fences < FENCES && ce < E &&
#ifdef QUORUM
        true ->
        fences++; begin_sealing()
#else
        (isr & live & ~BIT(me)) != 0 ->
        fences++; nisr = isr & ~BIT(me); settle(false, 0)
#endif
    }
#ifdef QUORUM
#ifdef M_NO_SEAL
    :: d_step { sealing != 0 && up[me] && HAS(isr & live, me) && !HAS(sealing, me) ->
#else
    :: d_step { sealing != 0 && up[me] && ve[me] == ce && HAS(isr & live, me) && !HAS(sealing, me) && dur[me] < leo[me] ->
        dur[me] = leo[me]   /* or not: then less is sealed */
    }
    :: d_step { sealing != 0 && up[me] && ve[me] == ce && HAS(isr & live, me) && !HAS(sealing, me) ->
#endif
        sealing = sealing | BIT(me);
        sealed_at[me] = dur[me] + (dur[me] == 0 -> 0 : 16 * epoch_of[AT(me, dur[me] - 1)])
    }
    :: d_step { me == 0 && sealing != 0 && ce < E ->
        popcount(sealing & isr & live); h = n; n = 0; best = NOBODY; k = 0;
        do
        :: k < N ->
            if
            :: HAS(sealing & isr & live, k) && best == NOBODY -> best = k
#ifdef M_LONGEST_LOG
            :: HAS(sealing & isr & live, k) && best != NOBODY && sealed_at[k] % 16 > sealed_at[best] % 16 -> best = k
#else
            :: HAS(sealing & isr & live, k) && best != NOBODY && sealed_at[k] > sealed_at[best] -> best = k
#endif
            :: else
            fi;
            k++
        :: else -> break
        od;
        if
#ifdef M_MINORITY_SEALS
        :: h >= 1 ->
#else
        :: 2 * h > N ->
#endif
            cl = best; ce++; changed(); sealing = 0; k = 0;
            do
            :: k < N -> sealed_at[k] = 0; k++
            :: else -> break
            od
        :: else
        fi;
        best = 0; h = 0
    }
#endif
    /* a crash: how much is lost is anybody's guess */
    :: atomic { up[me] && crashes < CRASHES ->
        crashes++;
        f = dur[me];
        do
        :: f < leo[me] -> f++
        :: break
        od;
        d_step { down(me) }
    }
    :: atomic { up[me] && losses < LOSSES && dur[me] > 0 ->
        losses++; hurt[me] = true; f = 0;
        do
        :: f < dur[me] - 1 -> f++
        :: break
        od;
        d_step { down(me) }
    }
    /* the next life registers */
    :: d_step { !up[me] && ce < E ->
        up[me] = true; life[me]++; live = live | BIT(me);
#ifdef QUORUM
        sealing = sealing & ~BIT(me); sealed_at[me] = 0;
        if
#ifdef M_WIPED_MEMBER
        :: false
#else
          :: hurt[me] -> isr = isr & ~BIT(me); changed()
#endif
        :: else
        fi;
        hurt[me] = false;
        if
        :: cl == me -> begin_sealing()
        :: else
        fi
#else
        if
#ifdef M_STAY_IN_ISR
        :: HAS(isr, me) -> nisr = isr
#else
        :: HAS(isr, me) && (isr & ~BIT(me)) != 0 -> nisr = isr & ~BIT(me)
#ifdef M_LAST_MEMBER_STAYS
        :: HAS(isr, me) && isr == BIT(me) -> nisr = isr
#else
        :: HAS(isr, me) && isr == BIT(me) -> nisr = (hurt[me] -> 0 : isr)
#endif
#endif
        :: else -> nisr = isr
        fi;
        a = (hurt[me] -> BIT(me) : 0);
#if !defined(M_ELR_KEEPS_UNSAFE) && !defined(M_LAST_MEMBER_STAYS)
        hurt[me] = false;
#endif
        settle(HAS(nisr, me) && (cl == me || isr == BIT(me)), a);
        hurt[me] = false; a = 0
#endif
    }
    od
}

init {
    atomic {
        up[0] = true; lisr[0] = ALL;
        byte p = 0;
        do
        :: p < N -> run Replica(p); p++
        :: else -> break
        od;
        p = 0
    }
}
