package org.mqlake.clients;

import com.google.gson.Gson;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/**
 * Runs cases by name and prints a JSON line for each.
 *
 * <pre>Driver NAME_SERVER PREFIX PARALLEL CASE...</pre>
 *
 * A case's topic and group are both called PREFIX-CASE; the topic exists, with four queues.
 */
public final class Driver {
    private Driver() {
    }

    static Map<String, Case> cases() {
        Map<String, Case> cases = new LinkedHashMap<>();
        SendCases.register(cases);
        ConsumeCases.register(cases);
        PullCases.register(cases);
        RetryCases.register(cases);
        TransactionCases.register(cases);
        QueryCases.register(cases);
        ErrorCases.register(cases);
        RequestCases.register(cases);
        Release.register(cases);
        return cases;
    }

    public static void main(String[] args) throws Exception {
        Map<String, Case> cases = cases();
        ExecutorService pool = Executors.newFixedThreadPool(Integer.parseInt(args[2]));
        List<Future<?>> running = new ArrayList<>();
        for (int i = 3; i < args.length; i++) {
            String name = args[i];
            if (!cases.containsKey(name)) {
                throw new IllegalArgumentException("no case " + name);
            }
            running.add(pool.submit(() -> print(run(cases.get(name), args[0], args[1], name))));
        }
        for (Future<?> one : running) {
            one.get();
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static Map<String, Object> run(Case one, String nameServer, String prefix, String name) {
        long start = System.currentTimeMillis();
        Run run = new Run(nameServer, prefix, name);
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("case", name);
        try {
            one.run(run);
            line.put("ok", true);
        } catch (Throwable e) {
            StackTraceElement[] trace = e.getStackTrace();
            StringBuilder where = new StringBuilder();
            for (StackTraceElement at : trace) {
                if (at.getClassName().startsWith("org.mqlake")) {
                    where.append(" at ").append(at.getFileName()).append(':').append(at.getLineNumber());
                }
            }
            line.put("ok", false);
            line.put("detail", e + where.toString());
        }
        line.put("counts", run.counts);
        line.put("milliseconds", System.currentTimeMillis() - start);
        run.close();
        return line;
    }

    private static synchronized void print(Map<String, Object> line) {
        System.out.println(new Gson().toJson(line));
        System.out.flush();
    }
}
