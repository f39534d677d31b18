// The links between a run and the runs that repeat it.
import type { RunRow } from "./data";
import type { ServerSource } from "./source";
import { formatTime } from "./format";
import { useLoaded } from "./loading";
import { buildHash } from "./route";

/** The run that this one repeats, and the runs that repeat this one, each with a comparison. */
export function RerunLinks({ server, run }: { server: ServerSource; run: string }) {
  const loaded = useLoaded(() => server.runs(), [run]);
  if (loaded === null || !("value" in loaded)) return null;
  const before = loaded.value.find((each) => each.id === run)?.rerun_of;
  const after = loaded.value.filter((each) => each.rerun_of === run);
  const known = new Map(loaded.value.map((each) => [each.id, each]));
  return (
    <>
      {before && <RerunLink text="Repeats" base={before} head={run} other={before} row={known.get(before)} />}
      {after.map((each) => (
        <RerunLink key={each.id} text="Run again as" base={run} head={each.id} other={each.id} row={each} />
      ))}
    </>
  );
}

interface LinkProps {
  text: string;
  base: string;
  head: string;
  other: string;
  row: RunRow | undefined;
}

function RerunLink({ text, base, head, other, row }: LinkProps) {
  if (row === undefined) {
    return (
      <span class="rerun-link">
        {text} <span class="mono">{other}</span> (deleted)
      </span>
    );
  }
  return (
    <span class="rerun-link">
      {text} <a href={buildHash(["runs", other])}>{formatTime(row.at)}</a> (<a href={buildHash(["compare", base, head])}>compare</a>)
    </span>
  );
}
