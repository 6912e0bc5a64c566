-- By which Tor's consensus names guards and vanguards that are not described.
ALTER TABLE guard ADD COLUMN rsa_id BLOB;
ALTER TABLE vanguard ADD COLUMN rsa_id BLOB;
