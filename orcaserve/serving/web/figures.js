// Figures of a stretch of iterations: rates and latencies, from the schedule's own events.

/** The q-quantile of sorted values, or null of none. */
export function quantile(sorted, q) {
  if (sorted.length === 0) return null;
  const at = q * (sorted.length - 1);
  const low = Math.floor(at);
  const high = Math.min(low + 1, sorted.length - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - low);
}

/**
 * Of the iterations from place `from` up to `to`: output tokens per second, times to the first token and between
 * tokens (seconds, sorted), waits until the first iteration, mean batch size. A token is there when its iteration is
 * back.
 */
export function figuresOf(history, from, to) {
  const first = [];
  const between = [];
  const last = new Map(); // id -> when its last token came
  let nOutput = 0;
  let nRequests = 0;
  let nIterations = 0;
  let begin = null;
  let end = null;
  for (let place = Math.max(from, history.first); place <= Math.min(to, history.next - 1); place++) {
    const iteration = history.at(place);
    begin ??= iteration.time;
    nIterations += 1;
    nRequests += iteration.increments.length + iteration.pieces.length;
    if (iteration.ended === null) continue;
    end = Math.max(end ?? 0, iteration.ended);
    for (const id of iteration.increments) {
      const before = last.get(id);
      if (before !== undefined) between.push(iteration.ended - before);
      last.set(id, iteration.ended);
    }
    nOutput += iteration.increments.length;
    for (const piece of iteration.pieces) {
      if (piece.toCome) continue;
      const life = history.lives.get(piece.id);
      if (life !== undefined && !life.asked) continue; // it is only read
      nOutput += 1;
      if (life !== undefined && life.arrived !== null && life.begun >= 0 && !last.has(piece.id)) {
        first.push(iteration.ended - life.arrived);
      }
      last.set(piece.id, iteration.ended);
    }
  }
  const ascending = (a, b) => a - b;
  const seconds = begin !== null && end !== null ? end - begin : 0;
  return {
    tokensPerSecond: seconds > 0 ? nOutput / seconds : null,
    nOutput,
    seconds,
    meanBatch: nIterations ? nRequests / nIterations : null,
    first: first.sort(ascending),
    between: between.sort(ascending),
  };
}
