-- Guards are confirmed by use; whether they fail is no longer kept.
ALTER TABLE guard ADD COLUMN confirmed INTEGER;
UPDATE guard SET confirmed = chosen WHERE failed IS NULL;
ALTER TABLE guard DROP COLUMN failed;
