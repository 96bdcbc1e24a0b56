package org.mqlake.clients;

/** One thing that a client does with a broker; it throws when the broker did not do its part. */
interface Case {
    void run(Run run) throws Exception;
}
