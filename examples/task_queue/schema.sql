CREATE TABLE IF NOT EXISTS tasks (
    id                    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task_data             jsonb NOT NULL,
    scheduled_at          timestamptz NOT NULL DEFAULT now(),
    processor             text,
    last_heartbeat_at     timestamptz,
    must_heartbeat_before timestamptz,
    started_at            timestamptz,
    processed_at          timestamptz,
    task_output           jsonb,
    fence                 bigint NOT NULL DEFAULT 0    -- the token of the last accepted write
);
CREATE INDEX IF NOT EXISTS tasks_to_do ON tasks (scheduled_at, id) WHERE processed_at IS NULL;

-- One row: whether the generator should run, and the token of its last write.
CREATE TABLE IF NOT EXISTS generator (
    id       int PRIMARY KEY CHECK (id = 1),
    running  boolean NOT NULL DEFAULT false,
    produced bigint NOT NULL DEFAULT 0,
    fence    bigint NOT NULL DEFAULT 0
);
INSERT INTO generator (id) VALUES (1) ON CONFLICT DO NOTHING;

-- These tables are not part of the pattern. They are an independent audit: each completion, and each write with a token
-- below an earlier one.
CREATE TABLE IF NOT EXISTS completions (task bigint, processor text, fence bigint);
CREATE TABLE IF NOT EXISTS stale (task bigint, fence bigint, highest bigint);
CREATE OR REPLACE FUNCTION audit_task() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.fence < OLD.fence THEN
        INSERT INTO stale VALUES (NEW.id, NEW.fence, OLD.fence);
    END IF;
    IF NEW.processed_at IS NOT NULL THEN
        INSERT INTO completions VALUES (NEW.id, NEW.processor, NEW.fence);
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER audit_task BEFORE UPDATE ON tasks FOR EACH ROW EXECUTE FUNCTION audit_task();
