// Application Insights, its export to storage for the nightly trends, and alerts.

param name string
param location string
param tags object
param principalId string
param telemetryAccountId string
param alertEmails string[]

var metricsPublisher = '3913510d-42f4-4e42-8a64-420c390055eb'
var exported = ['AppEvents', 'AppRequests', 'AppDependencies', 'AppTraces']

// The functions' log lines begin with what was done: [poison], [decided].
// All but one wait for something that is written. An app whose settings are refused runs no function
// and writes nothing, so that one counts what is there and gives a row where it counted none.
var alerts = [
  {
    name: 'nothing-runs'
    description: 'No metric was collected for a quarter of an hour: nothing is scaled. Are the settings refused?'
    scope: 'component'
    query: 'requests | where name == "metric_collector" | summarize runs = count() | where runs == 0'
    minutes: 15
    above: 0
    severity: 1
  }
  {
    name: 'poison'
    description: 'A message could not be processed. The line and the decision log say why.'
    scope: 'workspace'
    query: 'AppTraces | where Message startswith "[poison]"'
    minutes: 5
    above: 0
    severity: 1
  }
  {
    name: 'events-gone'
    description: 'Events are gone from the hub before they were taken in. The line says which.'
    scope: 'workspace'
    query: 'AppTraces | where Message startswith "[gap]"'
    minutes: 5
    above: 0
    severity: 1
  }
  {
    name: 'breaker-opened'
    description: 'Too many events failed, and none are taken in until somebody or a probe closes it.'
    scope: 'workspace'
    query: 'AppTraces | where Message startswith "[breaker_opened]"'
    minutes: 5
    above: 0
    severity: 1
  }
  {
    name: 'failures'
    description: 'Functions fail: see the exceptions of these operations.'
    scope: 'workspace'
    query: 'AppRequests | where Success == false'
    minutes: 15
    above: 5
    severity: 2
  }
  {
    name: 'at-maximum'
    description: 'The rules want more instances than the maximum allows, for half an hour.'
    scope: 'workspace'
    query: 'AppTraces | where Message startswith "[decided]" and Message contains "maximum is"'
    minutes: 30
    above: 60
    severity: 2
  }
]

resource workspace 'Microsoft.OperationalInsights/workspaces@2023-09-01' = {
  name: name
  location: location
  tags: tags
  properties: {
    sku: { name: 'PerGB2018' }
    retentionInDays: 30
    features: { disableLocalAuth: true }
  }
}

resource insights 'Microsoft.Insights/components@2020-02-02' = {
  name: name
  location: location
  tags: tags
  kind: 'web'
  properties: {
    Application_Type: 'web'
    WorkspaceResourceId: workspace.id
    DisableLocalAuth: true
  }
}

resource export 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  name: 'telemetry-to-storage'
  scope: insights
  properties: {
    storageAccountId: telemetryAccountId
    logs: [for category in exported: { category: category, enabled: true }]
  }
}

resource mayPublish 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(insights.id, principalId, metricsPublisher)
  scope: insights
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', metricsPublisher)
  }
}

resource people 'Microsoft.Insights/actionGroups@2023-01-01' = if (!empty(alertEmails)) {
  name: name
  location: 'global'
  tags: tags
  properties: {
    enabled: true
    groupShortName: 'autoscaler'
    emailReceivers: [
      for email in alertEmails: {
        name: email
        emailAddress: email
        useCommonAlertSchema: true
      }
    ]
  }
}

resource rules 'Microsoft.Insights/scheduledQueryRules@2023-12-01' = [
  for alert in alerts: {
    name: '${name}-${alert.name}'
    location: location
    tags: tags
    properties: {
      displayName: alert.name
      description: alert.description
      severity: alert.severity
      enabled: true
      // A table of the workspace comes into being with its first row; a component has all from the start.
      scopes: [alert.scope == 'component' ? insights.id : workspace.id]
      skipQueryValidation: true
      evaluationFrequency: 'PT5M'
      windowSize: 'PT${alert.minutes}M'
      criteria: {
        allOf: [
          {
            query: alert.query
            timeAggregation: 'Count'
            operator: 'GreaterThan'
            threshold: alert.above
            failingPeriods: { numberOfEvaluationPeriods: 1, minFailingPeriodsToAlert: 1 }
          }
        ]
      }
      autoMitigate: true
      actions: { actionGroups: empty(alertEmails) ? [] : [people.id] }
    }
  }
]

output insightsName string = insights.name
output actionGroupIds string[] = empty(alertEmails) ? [] : [people.id]
