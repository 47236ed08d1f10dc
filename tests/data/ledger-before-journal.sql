BEGIN TRANSACTION;
CREATE TABLE counters (name text primary key, value real not null) without rowid;
INSERT INTO "counters" VALUES('a',1.5);
INSERT INTO "counters" VALUES('refusals{cloud="aws",code="ICE",market="spot"}',1.0);
CREATE TABLE decision_subjects (
            subject text not null,
            decision integer not null,
            primary key (subject, decision)
        ) without rowid;
INSERT INTO "decision_subjects" VALUES('job:7',1);
INSERT INTO "decision_subjects" VALUES('pub1',1);
INSERT INTO "decision_subjects" VALUES('pub1',2);
CREATE TABLE decisions (
            id integer primary key,
            at real not null,
            correlation text not null,
            kind text not null,
            subjects text not null,
            reason text not null,
            detail text
        );
INSERT INTO "decisions" VALUES(1,1800000000.0,'r1','launched','["pub1","job:7"]','cheapest','{"n":1}');
INSERT INTO "decisions" VALUES(2,1800000001.0,'r1','registered','["pub1"]','it is up',NULL);
CREATE TABLE directives (
            number integer primary key,
            word text not null,
            who text not null,
            since real not null,
            starts real not null,
            until real,
            reason text not null
        );
INSERT INTO "directives" VALUES(1800000000,'{"kind":"pause","scope":"cloud:near"}','root',1800000000.0,1800000000.0,NULL,'cooling');
CREATE TABLE drains (
            node text not null,
            begin real not null,
            end real,
            primary key (node, begin)
        ) without rowid;
INSERT INTO "drains" VALUES('pub2',1800000000.0,NULL);
CREATE TABLE exclusions (
            kind text not null,
            scope text not null,
            until real not null,
            cause text not null,
            code text not null,
            count integer not null,
            since real not null,
            pool text not null,
            about text not null,
            primary key (kind, scope)
        ) without rowid;
INSERT INTO "exclusions" VALUES('cool-down','aws/c6i.xlarge/eu-west-1a/spot',1800000600.0,'no capacity','ICE',2,1800000000.0,'','[]');
INSERT INTO "exclusions" VALUES('doubt','near',9e999,'it lists 1 of 9','',0,1800000000.0,'','["i-1","node:pub9"]');
CREATE TABLE health (
            name text primary key,
            checked real not null,
            error text,
            code text
        ) without rowid;
INSERT INTO "health" VALUES('aws',1800000000.0,NULL,NULL);
CREATE TABLE heartbeats (
            service text primary key,
            at real not null,
            pid integer not null
        ) without rowid;
INSERT INTO "heartbeats" VALUES('slurm-elasticd',1800000000.0,1);
CREATE TABLE launches (
            generation text primary key,
            request text not null,
            pool text not null,
            cloud text not null,
            nodes text not null,
            jobs text not null,
            offer text not null,
            state text not null check (state in ('intent', 'done', 'failed')),
            created real not null,
            finished real,
            error text
        , accounts text not null default '{}', owner text not null default '{}', recipe text not null default '') without rowid;
INSERT INTO "launches" VALUES('g0','r0','burst','aws','["pub4"]','[6]','{"cloud":"aws","location":"public","instance_type":"c6i.xlarge","zone":"eu-west-1a","market":"spot","price":0.04,"cpus":4,"memory":8192,"gres":{},"on_demand_price":0.12,"free":null,"free_reason":"","interruption_rate":0.0,"reference_price":null,"reference":""}','done',1799991000.0,1799991010.0,NULL,'{}','{}','');
INSERT INTO "launches" VALUES('g1','r1','burst','aws','["pub1","pub2"]','[7]','{"cloud":"aws","location":"public","instance_type":"c6i.xlarge","zone":"eu-west-1a","market":"spot","price":0.04,"cpus":4,"memory":8192,"gres":{},"on_demand_price":0.12,"free":null,"free_reason":"","interruption_rate":0.0,"reference_price":null,"reference":""}','done',1800000000.0,1800000003.0,NULL,'{"pub1":{"physics":2}}','{}','');
INSERT INTO "launches" VALUES('g2','r2','burst','aws','["pub3"]','[8]','{"cloud":"aws","location":"public","instance_type":"c6i.xlarge","zone":"eu-west-1a","market":"spot","price":0.04,"cpus":4,"memory":8192,"gres":{},"on_demand_price":0.12,"free":null,"free_reason":"","interruption_rate":0.0,"reference_price":null,"reference":""}','intent',1800000100.0,NULL,NULL,'{}','{}','');
CREATE TABLE lifted_requeues (
            job integer primary key,
            restarts integer not null,
            at real not null
        );
INSERT INTO "lifted_requeues" VALUES(7,0,1800000000.0);
CREATE TABLE "machines" (
            id text not null,
            cloud text not null,
            node text not null,
            generation text not null,
            instance_type text not null,
            zone text not null,
            market text not null,
            price real not null,
            state text not null,
            launched real not null,
            address text,
            pool text not null,
            jobs text not null,
            last_seen real not null,
            misses integer not null,
            suspending real,
            ended real,
            why text,
            worst_price real not null,
            registered real, accounts text not null default '{}', stopping real, stopped real, born real, tunnel_key text,
            primary key (cloud, id)
        ) without rowid;
INSERT INTO "machines" VALUES('i-0','aws','pub4','g0','c6i.xlarge','eu-west-1a','spot',0.04,'terminated',1799991000.0,NULL,'burst','[6]',1799991010.0,0,1799996400.0,1799996410.0,'suspended by Slurm',0.12,NULL,'{}',NULL,NULL,NULL,NULL);
INSERT INTO "machines" VALUES('i-1','aws','pub1','g1','c6i.xlarge','eu-west-1a','spot',0.04,'pending',1800000000.0,'10.9.0.2','burst','[7]',1800000003.0,0,NULL,NULL,NULL,0.12,1800000060.0,'{"physics":2}',NULL,NULL,NULL,NULL);
INSERT INTO "machines" VALUES('i-2','aws','pub2','g1','c6i.xlarge','eu-west-1a','spot',0.04,'pending',1800000000.0,NULL,'burst','[7]',1800000003.0,0,NULL,NULL,NULL,0.12,NULL,'{}',NULL,NULL,NULL,NULL);
CREATE TABLE read_whole (
            cloud text primary key,
            at real not null
        ) without rowid;
INSERT INTO "read_whole" VALUES('aws',1800000000.0);
CREATE TABLE runs (
            job integer not null,
            begin real not null,
            end real,
            label text not null,
            user text not null,
            uid integer not null,
            account text not null,
            partition text not null,
            shares text not null,
            primary key (job, begin)
        ) without rowid;
INSERT INTO "runs" VALUES(7,1800000060.0,NULL,'7','u',1000,'physics','pub','[["pub1",1000000]]');
CREATE TABLE set_aside (
            job integer primary key,
            account text not null,
            partitions text not null,
            begin real not null,
            until real not null
        );
INSERT INTO "set_aside" VALUES(9,'physics','["pub"]',0.0,1800000060.0);
CREATE TABLE settled (at real not null);
INSERT INTO "settled" VALUES(1800000000.0);
CREATE TABLE told (key text primary key, at real not null) without rowid;
INSERT INTO "told" VALUES('k',1800000000.0);
CREATE TABLE tunnels (
            generation text not null,
            node text not null,
            address text not null unique,
            key text not null unique,
            since real not null,
            primary key (generation, node)
        ) without rowid;
INSERT INTO "tunnels" VALUES('g1','pub1','10.9.0.2','k1',1800000000.0);
CREATE TABLE wanted_by (
            node text primary key,
            accounts text not null,
            at real not null
        ) without rowid;
INSERT INTO "wanted_by" VALUES('pub1','{"physics":2}',1800000000.0);
CREATE INDEX launches_request on launches (request);
CREATE INDEX launches_open on launches (created) where state = 'intent';
CREATE INDEX decisions_at on decisions (at);
CREATE INDEX decision_subjects_decision on decision_subjects (decision);
CREATE INDEX machines_live on machines (cloud) where ended is null;
CREATE INDEX machines_ended on machines (ended) where ended is not null;
CREATE INDEX runs_end on runs (end);
CREATE INDEX machines_stopped on machines (cloud) where stopped is not null;
COMMIT;
pragma user_version = 16;
