-- A client's list: one row at most. `split` is set when another list for the same time was seen.
CREATE TABLE list (one INTEGER PRIMARY KEY CHECK (one = 1), text TEXT NOT NULL, split INTEGER NOT NULL);
-- The last list before it that nothing spoke against.
CREATE TABLE before (one INTEGER PRIMARY KEY CHECK (one = 1), text TEXT NOT NULL);
-- Two lists for the same time.
CREATE TABLE proof (id INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT NOT NULL);
-- A client's guards in their order, and how their circuits have fared; times are seconds since 1970.
CREATE TABLE guard (place INTEGER PRIMARY KEY, identity BLOB NOT NULL UNIQUE, chosen INTEGER NOT NULL, confirmed INTEGER, unlisted INTEGER, circuits INTEGER NOT NULL DEFAULT 0, built INTEGER NOT NULL DEFAULT 0, uses INTEGER NOT NULL DEFAULT 0, used INTEGER NOT NULL DEFAULT 0, barred INTEGER NOT NULL DEFAULT 0, rsa_id BLOB);
-- The relays of onion services' circuits behind the guard, and until when each is one; times are seconds since 1970.
CREATE TABLE vanguard (place INTEGER PRIMARY KEY, identity BLOB NOT NULL, layer INTEGER NOT NULL, until INTEGER NOT NULL, rsa_id BLOB);
-- The exits of which a client takes its, and the round trips to them in milliseconds; times are seconds since 1970.
CREATE TABLE candidate (place INTEGER PRIMARY KEY, identity BLOB NOT NULL, millis INTEGER, since INTEGER NOT NULL);
-- What relays have told an authority, and since when they pass its tests; times are seconds since 1970.
CREATE TABLE descriptor (identity BLOB PRIMARY KEY, text TEXT NOT NULL, since INTEGER) WITHOUT ROWID;
