-- Fencing for PostgreSQL. Apply it as a migration, in the schema of the new table. It is idempotent.
--
--   BEGIN;
--   SELECT tenure_fence('report-7', 844424930132010);   -- raises TNF01 if the token is stale
--   ... any number of statements ...
--   COMMIT;

CREATE TABLE IF NOT EXISTS tenure_fences (
    resource text PRIMARY KEY,
    token bigint NOT NULL CHECK (token >= 0)
) WITH (fillfactor = 50); -- free space in each page, so that updates stay in the page (HOT)

-- Accepts the token or raises SQLSTATE TNF01. It locks the resource until the end of the transaction, so a newer token
-- waits. Call it in a separate statement, before the statements that it protects.
--
-- The function relies on these properties of INSERT .. ON CONFLICT DO UPDATE:
-- - It locks the row even if the WHERE is false.
-- - The primary key serializes two concurrent first uses.
-- - In REPEATABLE READ and above, it fails with 40001 if the row has changed since the snapshot, instead of using a
--   stale row. For this reason it updates the row also for an equal token.
--
-- Not STRICT: with a null token, a strict function would return without a check.
CREATE OR REPLACE FUNCTION tenure_fence(resource text, token bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    highest bigint;
BEGIN
    IF $1 IS NULL OR $2 IS NULL OR $2 < 0 THEN
        RAISE EXCEPTION 'a fence needs a resource and a token of 0 or more' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO tenure_fences AS kept (resource, token) VALUES ($1, $2)
    ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE kept.token <= excluded.token;
    IF NOT FOUND THEN
        SELECT kept.token INTO STRICT highest FROM tenure_fences AS kept WHERE kept.resource = $1;
        RAISE EXCEPTION 'fencing token % is stale: % has seen %', $2, $1, highest
            USING ERRCODE = 'TNF01', DETAIL = 'offered=' || $2 || ' highest=' || highest;
    END IF;
END
$$;
