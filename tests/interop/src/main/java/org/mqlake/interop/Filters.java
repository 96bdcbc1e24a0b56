package org.mqlake.interop;

import com.google.gson.Gson;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;

/** Which properties SQL expressions match, as a broker decides it: an error while it evaluates is no match. */
public final class Filters {
    private Filters() {
    }

    private static final class Given {
        List<String> expressions;
        List<Map<String, String>> properties;
    }

    public static void main(String[] args) throws Exception {
        Given given = new Gson().fromJson(Files.readString(Path.of(args[0])), Given.class);
        for (String text : given.expressions) {
            System.out.println(new Gson().toJson(answer(text, given.properties)));
        }
    }

    private static Map<String, Object> answer(String text, List<Map<String, String>> propertySets) {
        Map<String, Object> line = new HashMap<>();
        line.put("expression", text);
        try {
            Expression expression = FilterFactory.INSTANCE.get("SQL92").compile(text);
            List<Boolean> matches = new ArrayList<>();
            for (Map<String, String> properties : propertySets) {
                matches.add(matches(expression, properties));
            }
            line.put("matches", matches);
        } catch (Throwable e) {
            line.put("refused", String.valueOf(e.getMessage()));
        }
        return line;
    }

    private static boolean matches(Expression expression, Map<String, String> properties) {
        try {
            Object value = expression.evaluate(new Context(properties));
            return value instanceof Boolean && (Boolean) value;
        } catch (Throwable e) {
            return false;
        }
    }

    private record Context(Map<String, String> properties) implements EvaluationContext {
        @Override
        public Object get(String name) {
            return properties.get(name);
        }

        @Override
        public Map<String, Object> keyValues() {
            return new HashMap<>(properties);
        }
    }
}
