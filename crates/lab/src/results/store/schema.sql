-- results.sqlite; docs/results.md explains every column.
-- One campaign; every statement about time is in seconds, every size in bytes, unless the name says otherwise.

CREATE TABLE campaign (
  only        INTEGER PRIMARY KEY CHECK (only = 1),
  scenario    TEXT NOT NULL,
  summary     TEXT NOT NULL,
  source      TEXT NOT NULL,            -- the scenario's file, as it was read
  seed        TEXT NOT NULL,            -- decimal: it may exceed 63 bits
  repetitions INTEGER NOT NULL,
  baseline    TEXT,
  fingerprints TEXT NOT NULL,           -- JSON object: subject to the SHA-256 of all its resolved cases
  planned     INTEGER NOT NULL,         -- repetitions of all cases and subjects, all shards
  subjects    TEXT NOT NULL,            -- JSON array of labels, in the scenario's order
  families    TEXT NOT NULL DEFAULT '{}', -- JSON object: a label that follows the case, to what the scenario wrote (hoplite-{hops})
  cases       TEXT NOT NULL,            -- JSON array of objects, in the scenario's order
  began       REAL NOT NULL
) STRICT;

CREATE TABLE binary (
  name        TEXT PRIMARY KEY,
  sha256      TEXT NOT NULL,
  version     TEXT NOT NULL
) STRICT;

CREATE TABLE gate (
  name        TEXT PRIMARY KEY,         -- late_us, late_share, attempts, …
  value       REAL NOT NULL
) STRICT;

CREATE TABLE finding (                  -- what the paper found, and what is asked of a subject; NULL is any, or not said
  text        TEXT NOT NULL,
  metric      TEXT,
  workload    TEXT,
  parameters  TEXT NOT NULL,            -- JSON object: cases with these parameters
  subject     TEXT,
  relative_to TEXT,                     -- the figure is the ratio to this subject's
  value       REAL,
  low         REAL,
  high        REAL,
  unit        TEXT,
  relative_to_case TEXT NOT NULL DEFAULT '{}', -- JSON object: the figure is the ratio to the case with these parameters
  statistic   TEXT,                     -- of the metric's values; NULL: its own
  goal        INTEGER NOT NULL DEFAULT 0 -- 1: asked for, not found by a paper
) STRICT;

CREATE TABLE machine (
  id          TEXT PRIMARY KEY,         -- hash of the other columns
  kernel      TEXT NOT NULL,
  architecture TEXT NOT NULL,
  cpu         TEXT NOT NULL,
  cores       INTEGER NOT NULL,
  memory      INTEGER NOT NULL,
  governor    TEXT,                     -- of the processor's frequency, if it has one
  real_time   INTEGER NOT NULL,         -- whether real-time priority was to be had
  sysctls     TEXT NOT NULL             -- JSON object: settings of the machine that touch results
) STRICT;

CREATE TABLE run (
  id          TEXT PRIMARY KEY,         -- 16 hexadecimal digits, as in samples/ID.parquet
  parameters  TEXT NOT NULL,            -- JSON object: the case
  subject     TEXT NOT NULL,
  repetition  INTEGER NOT NULL,         -- from 1
  place       INTEGER NOT NULL,         -- in the campaign's interleaved order, from 1
  seed        TEXT NOT NULL,
  verdict     TEXT NOT NULL CHECK (verdict IN ('ok', 'invalid', 'failed')),
  attempt     INTEGER NOT NULL,         -- the one whose figures are here
  UNIQUE (parameters, subject, repetition)
) STRICT;

CREATE TABLE attempt (
  run         TEXT NOT NULL,            -- the run's id; the run itself may still be missing
  number      INTEGER NOT NULL,         -- from 1
  verdict     TEXT NOT NULL CHECK (verdict IN ('ok', 'invalid', 'failed')),
  why         TEXT NOT NULL,            -- empty if ok
  log         TEXT NOT NULL,            -- the end of the guilty process's log, if it failed
  set_aside   INTEGER NOT NULL DEFAULT 0, -- made before a `run --retry`
  machine     TEXT NOT NULL,
  began       REAL NOT NULL,            -- since 1970
  ready_after REAL NOT NULL,
  took        REAL NOT NULL,
  late_us_p50 REAL NOT NULL,
  late_us_p99 REAL NOT NULL,
  late_us_max REAL NOT NULL,
  late_share  REAL,                     -- of the packets, those later than the gate's late_us; NULL: none left, or an older program
  released    INTEGER NOT NULL,
  own_drops   INTEGER NOT NULL,
  stalls      INTEGER NOT NULL,
  emulator_cpu_s REAL NOT NULL,
  real_time   INTEGER NOT NULL,
  load_before REAL NOT NULL,
  load_after  REAL NOT NULL,
  steal       REAL NOT NULL,
  cpu_pressure REAL,                    -- NULL: the kernel does not tell
  stood_s     REAL NOT NULL DEFAULT 0,  -- the longest time for which the lab stood still
  leapt_s     REAL NOT NULL DEFAULT 0,  -- the largest leap of the machine's clock
  PRIMARY KEY (run, number)
) STRICT;

CREATE TABLE metric (
  run         TEXT NOT NULL REFERENCES run ON DELETE CASCADE,
  workload    TEXT,                     -- NULL: of the whole repetition
  transfer    INTEGER,                  -- of which transfer, from 1; NULL: of all of them
  name        TEXT NOT NULL,
  value       REAL NOT NULL
) STRICT;
CREATE INDEX metric_run ON metric (run);

CREATE TABLE process (
  run         TEXT NOT NULL REFERENCES run ON DELETE CASCADE,
  name        TEXT NOT NULL,
  host        TEXT NOT NULL,
  cpu_s       REAL NOT NULL,
  life_cpu_s  REAL NOT NULL,
  peak_memory INTEGER NOT NULL
) STRICT;
CREATE INDEX process_run ON process (run);

CREATE TABLE link (
  run         TEXT NOT NULL REFERENCES run ON DELETE CASCADE,
  name        TEXT NOT NULL,            -- LINK> or LINK<
  packets     INTEGER NOT NULL,
  bytes      INTEGER NOT NULL,
  drops       TEXT NOT NULL,            -- JSON object: cause to packets
  duplicated  INTEGER NOT NULL,
  corrupted   INTEGER NOT NULL,
  marked      INTEGER NOT NULL
) STRICT;
CREATE INDEX link_run ON link (run);
