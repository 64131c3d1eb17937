/** What of the replicas' logs is shown, and where leader epochs lie in it. */

/** The last `span` offsets of these logs: `{from, to}`. */
export function windowOf(logs, span) {
  const to = Math.max(1, ...logs.map(({ logEnd }) => logEnd));
  const start = logs.length ? Math.min(...logs.map(({ logStart }) => logStart)) : 0;
  return { from: Math.min(Math.max(start, to - span), to - 1), to };
}

/** The leader epochs of a log within the window, in order: `{epoch, from, to}`; those without records are left out. */
export function epochsOf({ logStart, logEnd, epochs, leaderEpoch }, window) {
  const known = epochs.length || leaderEpoch < 0 ? epochs : [{ epoch: leaderEpoch, start: logStart }];
  return known
    .map(({ epoch, start }, i) => ({
      epoch,
      from: Math.max(start, logStart, window.from),
      to: Math.min(known[i + 1]?.start ?? logEnd, logEnd, window.to),
    }))
    .filter(({ from, to }) => from < to);
}
