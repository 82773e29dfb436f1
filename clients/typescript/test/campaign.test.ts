import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import { type CallOptions, Election, LeaseManager, Refused, ShutDown, Unknown } from "tenure";
import { ManualClock } from "./support/clock.js";
import {
  deferred,
  freeLeases,
  lease,
  problem,
  type Replies,
  type Reply,
  ScriptedServer,
  standing,
  TOKEN,
} from "./support/server.js";

/** A test whose release is missing fails after this time. */
const LIMITED = { timeout: 30_000 };

let server: ScriptedServer;
let clock: ManualClock;
let holder: LeaseManager;

beforeEach(async () => {
  clock = new ManualClock();
  server = await ScriptedServer.start(freeLeases());
  holder = new LeaseManager({ endpoints: server.url, holder: "me", clock, operationTimeout: "1s" });
});

afterEach(async () => {
  server.handler = freeLeases();
  await holder.shutdown();
  await server[Symbol.asyncDispose]();
});

/** The answer to the first claim is lost, so its outcome is unknown. Later claims get the answers `later`, then none. */
function loseFirstAnswer(later: (Reply | Promise<Reply>)[], replies: Replies = {}): void {
  const answers = ["close" as const, problem(409, "held"), ...later];
  server.handler = freeLeases({
    acquire: () => answers[server.of("/acquire").length - 1] ?? "hang",
    explain: () => standing({ status: "holds", lease: lease("job", TOKEN) }),
    ...replies,
  });
}

/** A campaign in the pause after a claim whose outcome is unknown, and an acquire that claims in this pause. */
async function pausedCampaign(options: CallOptions = {}) {
  const campaign = new Election(holder, "job").campaign(options);
  campaign.catch(() => undefined);
  await server.received("/acquire", 2);
  // The manager sends this claim after the end of the other one.
  const acquiring = holder.acquire("job", { wait: "10s" });
  acquiring.catch(() => undefined);
  await server.received("/acquire", 3);
  return { campaign, acquiring };
}

test("cancelled_campaign_resolves_an_earlier_unknown_claim", LIMITED, async () => {
  loseFirstAnswer([problem(403, "forbidden")]);
  const cancel = new AbortController();
  const { campaign, acquiring } = await pausedCampaign({ signal: cancel.signal });
  await assert.rejects(acquiring, Refused);
  cancel.abort(new Error("not needed any more"));
  await assert.rejects(campaign, /not needed any more/);
  assert.equal((await server.received("/release")).body.token, TOKEN);
  assert.deepEqual(await holder.shutdown(), []);
  assert.equal(server.of("/release").length, 1);
});

test("campaign_cancelled_before_a_claim_ends_resolves_an_earlier_one", LIMITED, async () => {
  const answer = deferred<Reply>();
  loseFirstAnswer([answer.promise]);
  const cancel = new AbortController();
  const { campaign, acquiring } = await pausedCampaign({ signal: cancel.signal });
  cancel.abort(new Error("not needed any more"));
  await assert.rejects(campaign, /not needed any more/);
  answer.resolve(problem(403, "forbidden"));
  await assert.rejects(acquiring, Refused);
  assert.equal((await server.received("/release")).body.token, TOKEN);
});

test("cancelled_campaign_keeps_a_later_grant", LIMITED, async () => {
  loseFirstAnswer([{ body: lease("job", TOKEN) }]);
  const cancel = new AbortController();
  const { campaign, acquiring } = await pausedCampaign({ signal: cancel.signal });
  const held = await acquiring;
  cancel.abort(new Error("not needed any more"));
  await assert.rejects(campaign, /not needed any more/);
  assert.equal(await held.check(), true);
  assert.deepEqual(server.of("/release"), []);
});

test("refused_campaign_resolves_an_earlier_unknown_claim", LIMITED, async () => {
  loseFirstAnswer([problem(403, "forbidden")]);
  await assert.rejects(new Election(holder, "job").campaign(), { code: "forbidden" });
  assert.equal((await server.received("/release")).body.token, TOKEN);
});

for (const isResolved of [true, false]) {
  test(`shutdown_ends_a_campaign_${isResolved ? "with" : "without"}_resolved_claims`, async () => {
    loseFirstAnswer([problem(403, "forbidden")], isResolved ? {} : { explain: () => problem(503, "no_leader") });
    const { campaign, acquiring } = await pausedCampaign();
    await assert.rejects(acquiring, Refused);
    // Without a majority, cluster time stands still.
    clock.advance(2 * 86_400_000);
    const left = await holder.shutdown();
    assert.deepEqual(
      left.map(({ name }) => name),
      isResolved ? [] : ["job"],
    );
    await assert.rejects(campaign, isResolved ? ShutDown : Unknown);
    assert.equal(server.of("/release").length, isResolved ? 1 : 0);
  });
}

for (const code of [
  "held",
  "lock_delay",
  "wait_timeout",
  "wait_abandoned",
  "queue_full",
  "lease_full",
  "too_many_leases",
  "lost",
]) {
  test(`campaign_continues_after_the_refusal_${code}`, LIMITED, async () => {
    server.handler = freeLeases({
      acquire: () => (server.of("/acquire").length === 1 ? problem(409, code) : { body: lease("job", TOKEN) }),
    });
    const leadership = await new Election(holder, "job").campaign();
    assert.equal(leadership.isLeader(), true);
    assert.equal(server.of("/acquire").length, 2);
  });
}
