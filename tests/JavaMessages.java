import com.sun.source.tree.*;
import com.sun.source.util.*;
import java.io.File;
import java.io.PrintStream;
import java.nio.file.*;
import java.util.*;
import java.util.regex.*;
import java.util.stream.*;
import javax.lang.model.element.Modifier;
import javax.tools.*;

/**
 * Every message that the Android library may show, found as tests/messages.py finds Python's: `java JavaMessages.java
 * FOLDER` prints a line for each, with its file. What varies is `…`. Text in a variable, in a constant, in an argument of
 * the method around it, in what a method of the library gives back or in the branches of `?` is followed as far as it is
 * a phrase of its own.
 */
public final class JavaMessages {
    static final String GAP = "…";
    static final int PHRASE = 3;
    static final int DEEPEST = 5;
    static final Set<String> TROUBLE = Set.of("warning", "refused", "failed", "waiting", "unreachable", "reachable", "stopped");
    /** Whose constructions carry a message, and those of their subclasses. */
    static final Set<String> ERRORS = new HashSet<>(Set.of("SpryException", "BadRow", "Refusal", "Stopped"));
    /** What is told as the reason of a failure or a wait. */
    static final Set<String> TELLING = Set.of("giveBack", "await");

    static final Map<String, List<ExpressionTree>> CONSTANTS = new HashMap<>();
    static final Map<String, List<MethodTree>> METHODS = new HashMap<>();
    static final Map<String, List<Call>> CALLS = new HashMap<>();
    static final Map<String, List<Call>> FIELDS = new HashMap<>();
    static final List<Call> TOLD = new ArrayList<>();

    /** The class of each method, and of the messages that a method builds the call that is looked at. */
    static final Map<MethodTree, String> OWNERS = new IdentityHashMap<>();
    static final Map<MethodTree, Call> CHOSEN = new IdentityHashMap<>();

    /** Arguments, the method around them, the file, and what stands before the point of a call. */
    record Call(List<? extends ExpressionTree> arguments, MethodTree around, String where, String of) {}

    public static void main(String[] arguments) throws Exception {
        List<File> files;
        try (Stream<Path> all = Files.walk(Path.of(arguments[0]))) {
            files = all.filter(one -> one.toString().endsWith(".java")).map(Path::toFile).sorted().toList();
        }
        JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
        StandardJavaFileManager manager = compiler.getStandardFileManager(null, null, null);
        JavacTask task = (JavacTask) compiler.getTask(null, manager, null, null, null, manager.getJavaFileObjectsFromFiles(files));
        List<CompilationUnitTree> units = new ArrayList<>();
        task.parse().forEach(units::add);
        for (int before = -1; before < ERRORS.size(); ) {
            before = ERRORS.size();
            units.forEach(unit -> new Classes().scan(unit, null));
        }
        units.forEach(unit -> new Places(new File(unit.getSourceFile().getName()).getName()).scan(unit, null));
        Set<String> found = new TreeSet<>();
        for (Call told : TOLD) {
            List<Call> calls = told.around() == null ? List.of() : callsOf(told.around());
            for (Call call : calls.isEmpty() ? Collections.singletonList((Call) null) : calls) {
                CHOSEN.put(told.around(), call);
                for (ExpressionTree text : told.arguments()) {
                    texts(text, told.around(), 0).stream().map(JavaMessages::normal).filter(JavaMessages::isPhrase)
                            .forEach(template -> found.add(template + "\t" + told.where()));
                }
            }
            CHOSEN.clear();
        }
        new PrintStream(System.out, true, "UTF-8").print(String.join("\n", found));
    }

    static String normal(String text) {
        return text.replaceAll("['\"]…['\"]", GAP).replaceAll("…(\\s*…)+", GAP).replaceAll("\\s+", " ").trim();
    }

    static boolean isPhrase(String text) {
        return Pattern.compile("[a-zA-Z]{2,}").matcher(text).results().count() >= PHRASE;
    }

    static final class Classes extends TreeScanner<Void, Void> {
        @Override
        public Void visitClass(ClassTree node, Void unused) {
            if (node.getExtendsClause() != null && ERRORS.contains(last(node.getExtendsClause()))) {
                ERRORS.add(node.getSimpleName().toString());
            }
            for (Tree member : node.getMembers()) {
                if (member instanceof MethodTree method) {
                    OWNERS.put(method, node.getSimpleName().toString());
                }
            }
            return super.visitClass(node, unused);
        }
    }

    /** Where messages are written down, and what they may be made of. */
    static final class Places extends TreeScanner<Void, MethodTree> {
        private final String where;

        Places(String where) {
            this.where = where;
        }

        private Call call(List<? extends ExpressionTree> arguments, MethodTree around) {
            return new Call(arguments, around, where, "");
        }

        @Override
        public Void visitMethod(MethodTree node, MethodTree around) {
            METHODS.computeIfAbsent(node.getName().toString(), name -> new ArrayList<>()).add(node);
            return super.visitMethod(node, node);
        }

        @Override
        public Void visitVariable(VariableTree node, MethodTree around) {
            if (around == null && node.getInitializer() != null) {
                CONSTANTS.computeIfAbsent(node.getName().toString(), name -> new ArrayList<>()).add(node.getInitializer());
            }
            return super.visitVariable(node, around);
        }

        @Override
        public Void visitAssignment(AssignmentTree node, MethodTree around) {
            if (node.getVariable().toString().startsWith("this.")) {
                FIELDS.computeIfAbsent(last(node.getVariable()), name -> new ArrayList<>())
                        .add(call(List.of(node.getExpression()), around));
            }
            return super.visitAssignment(node, around);
        }

        @Override
        public Void visitNewClass(NewClassTree node, MethodTree around) {
            String name = last(node.getIdentifier());
            CALLS.computeIfAbsent(name, key -> new ArrayList<>()).add(call(node.getArguments(), around));
            if (name.equals("Refusal")) {
                TOLD.add(call(node.getArguments(), around));
            } else if (ERRORS.contains(name) && !node.getArguments().isEmpty()) {
                TOLD.add(call(List.of(node.getArguments().get(0)), around));
            }
            return super.visitNewClass(node, around);
        }

        @Override
        public Void visitMethodInvocation(MethodInvocationTree node, MethodTree around) {
            List<? extends ExpressionTree> given = node.getArguments();
            String name = last(node.getMethodSelect());
            String all = node.getMethodSelect().toString();
            String of = all.contains(".") ? all.substring(0, all.lastIndexOf('.')) : "";
            CALLS.computeIfAbsent(name, key -> new ArrayList<>()).add(new Call(given, around, where, of));
            boolean told = node.getMethodSelect().toString().equals("Event.of") && TROUBLE.contains(literal(given.get(0)));
            if (told || TELLING.contains(name) && !given.isEmpty()) {
                TOLD.add(call(List.of(given.get(given.size() - 1)), around));
            }
            return super.visitMethodInvocation(node, around);
        }
    }

    static String literal(ExpressionTree tree) {
        return tree instanceof LiteralTree text ? String.valueOf(text.getValue()) : "";
    }

    static String last(Tree tree) {
        String text = tree.toString();
        return text.substring(text.lastIndexOf('.') + 1);
    }

    // --- what they say ---

    static Set<String> texts(ExpressionTree tree, MethodTree around, int depth) {
        if (depth > DEEPEST) {
            return Set.of(GAP);
        }
        if (tree instanceof LiteralTree text) {
            return Set.of(text.getValue() instanceof String said ? said : GAP);
        }
        if (tree instanceof ParenthesizedTree inner) {
            return texts(inner.getExpression(), around, depth);
        }
        if (tree instanceof ConditionalExpressionTree either) {
            Set<String> found = new TreeSet<>(texts(either.getTrueExpression(), around, depth));
            found.addAll(texts(either.getFalseExpression(), around, depth));
            return found;
        }
        if (tree instanceof BinaryTree sum && sum.getKind() == Tree.Kind.PLUS) {
            Set<String> found = new TreeSet<>();
            for (String left : part(sum.getLeftOperand(), around, depth)) {
                part(sum.getRightOperand(), around, depth).forEach(right -> found.add(left + right));
            }
            return found;
        }
        if (tree instanceof MethodInvocationTree call) {
            return returned(call, around, depth);
        }
        return tree instanceof IdentifierTree || tree instanceof MemberSelectTree ? named(tree, around, depth) : Set.of(GAP);
    }

    /** Inside a sentence what is shorter than a phrase is a value, unless it stands there as it is. */
    static Set<String> part(ExpressionTree tree, MethodTree around, int depth) {
        Set<String> found = texts(tree, around, depth);
        if (tree instanceof LiteralTree || tree instanceof BinaryTree) {
            return found;
        }
        Set<String> phrases = new TreeSet<>();
        for (String text : found) {
            phrases.add(isPhrase(text) || text.isEmpty() ? text : GAP);
        }
        return phrases.stream().allMatch(text -> text.isEmpty() || text.equals(GAP)) ? Set.of(GAP) : phrases;
    }

    static Set<String> returned(MethodInvocationTree call, MethodTree around, int depth) {
        String name = last(call.getMethodSelect());
        if (call.getMethodSelect().toString().equals("String.format")) {
            int first = literal(call.getArguments().get(0)).isEmpty() ? 1 : 0; // behind a locale
            return Set.of(literal(call.getArguments().get(first)).replaceAll("%[,.0-9]*[sdf]", GAP));
        }
        Set<String> found = new TreeSet<>();
        String select = call.getMethodSelect().toString();
        String of = select.contains(".") ? select.substring(0, select.lastIndexOf('.')) : around == null ? "" : OWNERS.get(around);
        for (MethodTree method : METHODS.getOrDefault(name, List.of())) {
            boolean ours = of.isEmpty() || !Character.isUpperCase(of.charAt(0)) || of.equals(OWNERS.get(method));
            if (ours && method.getReturnType() != null && method.getReturnType().toString().equals("String") && method.getBody() != null) {
                new TreeScanner<Void, Void>() {
                    @Override
                    public Void visitReturn(ReturnTree node, Void unused) {
                        found.addAll(texts(node.getExpression(), method, depth + 1));
                        return null;
                    }
                }.scan(method.getBody(), null);
            }
        }
        return found.isEmpty() ? Set.of(GAP) : found;
    }

    /** Of a variable, a parameter, a constant or a field. */
    static Set<String> named(ExpressionTree tree, MethodTree around, int depth) {
        String name = last(tree);
        Set<String> found = new TreeSet<>();
        if (around != null && tree instanceof IdentifierTree) {
            for (ExpressionTree value : assigned(around, name)) {
                found.addAll(texts(value, around, depth + 1));
            }
            for (int i = 0; i < around.getParameters().size(); i++) {
                if (around.getParameters().get(i).getName().contentEquals(name)) {
                    found.addAll(given(around, i, depth));
                }
            }
        }
        for (ExpressionTree value : found.isEmpty() ? CONSTANTS.getOrDefault(name, List.of()) : List.<ExpressionTree>of()) {
            found.addAll(texts(value, null, depth + 1));
        }
        for (Call value : found.isEmpty() ? FIELDS.getOrDefault(name, List.of()) : List.<Call>of()) {
            found.addAll(texts(value.arguments().get(0), value.around(), depth + 1));
        }
        return found.isEmpty() ? Set.of(GAP) : found;
    }

    static List<ExpressionTree> assigned(MethodTree method, String name) {
        List<ExpressionTree> found = new ArrayList<>();
        new TreeScanner<Void, Void>() {
            @Override
            public Void visitVariable(VariableTree node, Void unused) {
                if (node.getName().contentEquals(name) && node.getInitializer() != null) {
                    found.add(node.getInitializer());
                }
                return super.visitVariable(node, unused);
            }

            @Override
            public Void visitAssignment(AssignmentTree node, Void unused) {
                if (node.getVariable().toString().equals(name)) {
                    found.add(node.getExpression());
                }
                return super.visitAssignment(node, unused);
            }
        }.scan(method.getBody(), null);
        return found;
    }

    /** What calls give as a parameter. */
    static Set<String> given(MethodTree method, int place, int depth) {
        Set<String> found = new TreeSet<>();
        Call chosen = CHOSEN.get(method);
        for (Call call : chosen == null ? callsOf(method) : List.of(chosen)) {
            found.addAll(texts(call.arguments().get(place), call.around(), depth + 1));
        }
        return found;
    }

    /** Those of a name with as many arguments; of a static method those that name its class, or stand in it. */
    static List<Call> callsOf(MethodTree method) {
        String name = method.getName().toString();
        String owner = OWNERS.get(method);
        boolean made = name.equals("<init>");
        boolean isStatic = method.getModifiers().getFlags().contains(Modifier.STATIC);
        int count = method.getParameters().size();
        return CALLS.getOrDefault(made ? owner : name, List.of()).stream()
                .filter(call -> count > 0 && call.arguments().size() == count)
                .filter(call -> made || (call.of().isEmpty() ? isIn(call, owner) : !isStatic || call.of().equals(owner)))
                .toList();
    }

    private static boolean isIn(Call call, String owner) {
        return call.around() == null || OWNERS.get(call.around()).equals(owner) || call.where().equals(owner + ".java");
    }
}
