-- How a guard's circuits have fared.
ALTER TABLE guard ADD COLUMN circuits INTEGER NOT NULL DEFAULT 0;
ALTER TABLE guard ADD COLUMN built INTEGER NOT NULL DEFAULT 0;
ALTER TABLE guard ADD COLUMN uses INTEGER NOT NULL DEFAULT 0;
ALTER TABLE guard ADD COLUMN used INTEGER NOT NULL DEFAULT 0;
ALTER TABLE guard ADD COLUMN barred INTEGER NOT NULL DEFAULT 0;
-- The relays of onion services' circuits behind the guard, and until when each is one; times are seconds since 1970.
CREATE TABLE vanguard (place INTEGER PRIMARY KEY, identity BLOB NOT NULL, layer INTEGER NOT NULL, until INTEGER NOT NULL);
