// The checkpoints of a trial: the turn that reached each, or why it was not reached.
import type { Checkpoint } from "./data";
import { Line } from "./text";
import type { LinkTo } from "./failure";

export function Checkpoints({ checkpoints, turns, to }: { checkpoints: Checkpoint[]; turns: number; to: LinkTo }) {
  const reached = checkpoints.filter((each) => each.reached).length;
  return (
    <section class="track" aria-label="Checkpoints" id="checkpoints">
      <h2>
        Checkpoints <span class="muted">{reached} of {checkpoints.length} reached</span>
      </h2>
      <ol>
        {checkpoints.map((each, n) => (
          <li key={each.id} class={each.reached ? "reached" : each.required ? "missing" : "optional"}>
            <span class="name">
              <b>{each.reached || !each.assertion ? <Line text={each.id} /> : <a {...to(`check-checkpoint-${n + 1}`)}><Line text={each.id} /></a>}</b>
              {each.description && <Line text={each.description} />}
            </span>
            <Rail turns={turns} at={each.reached ? (each.turn ?? 0) : null} />
            <span class="how">
              {each.reached ? (
                <a {...to(`turn-${each.turn}`)}>at turn {each.turn}</a>
              ) : (
                <>
                  not reached{each.required ? "" : " (optional)"}
                  {each.reason && (
                    <>
                      {": "}
                      <Line text={each.reason} room={400} />
                    </>
                  )}
                </>
              )}
            </span>
          </li>
        ))}
      </ol>
    </section>
  );
}

function Rail({ turns, at }: { turns: number; at: number | null }) {
  const shown = Math.max(turns, 1);
  return (
    <span class="rail" aria-hidden="true">
      {Array.from({ length: Math.min(shown, 60) }, (_, i) => {
        const turn = i + 1;
        return <i key={turn} class={at === turn ? "hit" : at !== null && turn > at ? "after" : ""} title={`turn ${turn}`} />;
      })}
    </span>
  );
}
